// The register-blocked products under every kernel: C = A·B and C += A·B on blocks of MR × NR.
//
// A is read by broadcasts, B by vectors. A is either in rows (a[r·lda + k], a plain matrix) or in columns
// (a[k·lda + r], packed, or the transpose of a plain matrix); B is always b[k·ldb + c].
#pragma once

#include "mask.h"
#include "simd.h"

namespace limelight::LIMELIGHT_ISA {

enum class Left { rows, columns };
enum class Result { set, add };

LIMELIGHT_INLINE int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// R rows (≤ MR) and NR columns of C. C, B: NR columns are read and written, always.
template <int R, Left L, Result S>
LIMELIGHT_INLINE void block(int64_t depth, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                            int64_t ldc) {
  vf sum[R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = vf{};
#pragma GCC unroll 2
  for (int64_t k = 0; k < depth; ++k) {
    const vf b0 = load(b + k * ldb), b1 = load(b + k * ldb + W);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const float x = L == Left::rows ? a[r * lda + k] : a[k * lda + r];
      sum[r][0] += x * b0;
      sum[r][1] += x * b1;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    float* at = c + r * ldc;
    if (S == Result::add) sum[r][0] += load(at), sum[r][1] += load(at + W);
    store(at, sum[r][0]);
    store(at + W, sum[r][1]);
  }
}

// The same for 1 ≤ rows ≤ MR known at run time.
template <Left L, Result S>
[[gnu::noinline]] void block_rest(int rows, int64_t depth, const float* a, int64_t lda, const float* b,
                                  int64_t ldb, float* c, int64_t ldc) {
  switch (rows) {
#define LIMELIGHT_CASE(R) \
  case R: return block<R, L, S>(depth, a, lda, b, ldb, c, ldc);
    LIMELIGHT_CASE(1)
    LIMELIGHT_CASE(2)
    LIMELIGHT_CASE(3)
    LIMELIGHT_CASE(4)
    LIMELIGHT_CASE(5)
    LIMELIGHT_CASE(6)
#if defined(__AVX512F__) || defined(__aarch64__)
    LIMELIGHT_CASE(7)
    LIMELIGHT_CASE(8)
    LIMELIGHT_CASE(9)
    LIMELIGHT_CASE(10)
    LIMELIGHT_CASE(11)
    LIMELIGHT_CASE(12)
#endif
#undef LIMELIGHT_CASE
  }
}

struct LeftMatrix {
  const float* data;
  int64_t stride;        // lda
  int64_t block_stride;  // from one block of MR rows to the next
};
struct RightMatrix {
  const float* data;
  int64_t stride;        // ldb
  int64_t panel_stride;  // from one panel of NR columns to the next
};

LIMELIGHT_INLINE LeftMatrix in_rows(const float* a, int64_t lda) { return {a, lda, MR * lda}; }
LIMELIGHT_INLINE LeftMatrix in_columns(const float* a, int64_t lda) { return {a, lda, MR}; }
LIMELIGHT_INLINE LeftMatrix in_packed_blocks(const float* a, int64_t depth) { return {a, MR, MR * depth}; }
LIMELIGHT_INLINE RightMatrix in_rows_of(const float* b, int64_t ldb) { return {b, ldb, NR}; }
LIMELIGHT_INLINE RightMatrix in_panels(const float* b, int64_t depth) { return {b, NR, NR * depth}; }

// C (rows × columns) = or += A (rows × depth) · B (depth × columns); `columns` is a multiple of NR.
// Panels outside, row blocks inside: a panel of B stays in the first cache while A streams by.
template <Left L, Result S>
void product(int64_t rows, int64_t columns, int64_t depth, LeftMatrix a, RightMatrix b, float* c, int64_t ldc) {
  for (int64_t p = 0; p * NR < columns; ++p) {
    const float* panel = b.data + p * b.panel_stride;
    int64_t r = 0;
    const float* left = a.data;
    for (; r + MR <= rows; r += MR, left += a.block_stride)
      block<MR, L, S>(depth, left, a.stride, panel, b.stride, c + r * ldc + p * NR, ldc);
    if (r < rows)
      block_rest<L, S>(static_cast<int>(rows - r), depth, left, a.stride, panel, b.stride, c + r * ldc + p * NR,
                       ldc);
  }
}

// --- packing ----------------------------------------------------------------------------------------

// Rows of `from` (count × depth, row stride in elements) times `factor` as panels of NR rows turned upright:
// into[panel][k][r], rows after the last are 0. This is B of S = Q·Kᵀ, with the keys as rows.
template <class T>
void pack_panels(const T* from, int64_t stride, int64_t count, int64_t depth, float* into, float factor = 1) {
  for (int64_t p = 0; p < count; p += NR, into += NR * depth) {
    for (int half = 0; half < 2; ++half) {
      const int64_t first = p + half * W;
      const int64_t here = smaller(W, greater(0, count - first));
      int64_t k = 0;
      for (; k < depth; k += W) {
        const int64_t wide = smaller(W, depth - k);
        vf row[W];
        if (here == W && wide == W) {
#pragma GCC unroll 16
          for (int r = 0; r < W; ++r) row[r] = load(from + (first + r) * stride + k) * factor;
        } else {
          for (int r = 0; r < W; ++r)
            row[r] = r < here ? load_part(from + (first + r) * stride + k, wide) * factor : vf{};
        }
        transpose(row);
        float* to = into + k * NR + half * W;
        if (wide == W) {
#pragma GCC unroll 16
          for (int r = 0; r < W; ++r) store(to + r * NR, row[r]);
        } else {
          for (int64_t r = 0; r < wide; ++r) store(to + r * NR, row[r]);
        }
      }
    }
  }
}

// Rows of `from` times `factor` as blocks of MR rows, into[block][k][r]; rows after the last are 0.
// This is A of S = Q·Kᵀ.
template <class T>
void pack_blocks(const T* from, int64_t stride, int64_t count, int64_t depth, float factor, float* into) {
  float line[MR][W];
  for (int64_t first = 0; first < count; first += MR, into += MR * depth) {
    const int64_t here = smaller(MR, count - first);
    for (int r = static_cast<int>(here); r < MR; ++r) store(line[r], vf{});
    for (int64_t k = 0; k < depth; k += W) {
      const int64_t wide = smaller(W, depth - k);
      for (int64_t r = 0; r < here; ++r) {
        const T* at = from + (first + r) * stride + k;
        store(line[r], (wide == W ? load(at) : load_part(at, wide)) * factor);
      }
      for (int64_t t = 0; t < wide; ++t)
        for (int r = 0; r < MR; ++r) into[(k + t) * MR + r] = line[r][t];
    }
  }
}

// Rows of `from` as panels of NR columns, into[panel][row][c], columns after the last are 0. This is B of
// O = P·V: the lines of a panel follow one another, so that it fits the first cache whatever the strides.
template <class T>
void pack_columns(const T* from, int64_t stride, int64_t count, int64_t width, float* into) {
  for (int64_t r = 0; r < count; ++r) {
    const T* row = from + r * stride;
    float* to = into + r * NR;
    int64_t c = 0;
    for (; c + NR <= width; c += NR, to += count * NR) store(to, load(row + c)), store(to + W, load(row + c + W));
    if (c < width) read_row(row + c, to, width - c, NR);
  }
}

// Rows of `from` as dense float rows of `padded` ≥ width columns, the rest 0.
template <class T>
void pack_rows(const T* from, int64_t stride, int64_t count, int64_t width, int64_t padded, float* into) {
  for (int64_t r = 0; r < count; ++r) read_row(from + r * stride, into + r * padded, width, padded);
}

}  // namespace limelight::LIMELIGHT_ISA
