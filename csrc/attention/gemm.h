// The register-blocked matrix products of all kernels: A·B in blocks of MR × NR, each passed to an epilogue while
// it is in registers.
//
// Elements of A are broadcast, rows of B are loaded as vectors. A is stored by rows (a[r·lda + k], a plain matrix)
// or by columns (a[k·lda + r], packed, or the transpose of a plain matrix); B is always b[k·ldb + c].
#pragma once

#include <utility>

#include "simd/vector.h"

namespace limelight::LIMELIGHT_ISA {

enum class Left { rows, columns };

// sum[r] += Σ_k a(r, k)·b[k] for NR columns: the inner loop of every product.
template <int R, Left L>
LIMELIGHT_INLINE void fma_block(vf (&sum)[R][2], int64_t depth, const float* a, int64_t lda, const float* b,
                                int64_t ldb) {
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
}

// Calls body with `rows` as a compile-time constant; 1 ≤ rows ≤ R.
template <int R, class Body>
LIMELIGHT_INLINE void with_rows(int64_t rows, Body&& body) {
  if constexpr (R == 1) {
    body(std::integral_constant<int, 1>{});
  } else if (rows == R) {
    body(std::integral_constant<int, R>{});
  } else {
    with_rows<R - 1>(rows, body);
  }
}

// Epilogues: called as epilogue(row, column, sums) with the R ≤ MR rows from `row` and the NR columns from
// `column`. These two store a block to C, or add it to C.
struct StoreBlock {
  float* c;
  int64_t stride;

  template <int R>
  LIMELIGHT_INLINE void operator()(int64_t row, int64_t column, vf (&sum)[R][2]) const {
    float* at = c + row * stride + column;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) store(at + r * stride, sum[r][0]), store(at + r * stride + W, sum[r][1]);
  }
};
struct AddBlock {
  float* c;
  int64_t stride;

  template <int R>
  LIMELIGHT_INLINE void operator()(int64_t row, int64_t column, vf (&sum)[R][2]) const {
    const float* at = c + row * stride + column;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r][0] += load(at + r * stride), sum[r][1] += load(at + r * stride + W);
    StoreBlock{c, stride}(row, column, sum);
  }
};

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
LIMELIGHT_INLINE LeftMatrix in_packed_blocks(const float* a, int64_t depth) { return {a, MR, MR * depth}; }
LIMELIGHT_INLINE RightMatrix in_panels(const float* b, int64_t depth) { return {b, NR, NR * depth}; }

// A (rows × depth) · B (depth × columns), block by block to `epilogue`; `columns` is a multiple of NR.
// Panels in the outer loop, row blocks in the inner: a panel of B stays in the L1 cache while A streams by.
template <Left L, class Epilogue>
void gemm(int64_t rows, int64_t columns, int64_t depth, LeftMatrix a, RightMatrix b, const Epilogue& epilogue) {
  for (int64_t p = 0; p * NR < columns; ++p) {
    const float* panel = b.data + p * b.panel_stride;
    const float* left = a.data;
    const auto block = [&](auto size, int64_t row) LIMELIGHT_INLINE_LAMBDA {
      constexpr int R = size;
      vf sum[R][2] = {};
      fma_block<R, L>(sum, depth, left, a.stride, panel, b.stride);
      epilogue(row, p * NR, sum);
    };
    int64_t r = 0;
    for (; r + MR <= rows; r += MR, left += a.block_stride) block(std::integral_constant<int, MR>{}, r);
    if (r < rows) with_rows<MR - 1>(rows - r, [&](auto size) { block(size, r); });
  }
}

// --- packing ----------------------------------------------------------------------------------------

// Up to R rows of `width` ≤ W elements times `factor`; rows from `count` on are 0. The loops are unrolled in both
// branches, so that the rows never leave the registers.
template <int R, class T>
LIMELIGHT_INLINE void load_rows(const T* from, int64_t stride, int64_t count, int64_t width, float factor,
                                vf (&row)[W]) {
  if (count >= R && width == W) {
#pragma GCC unroll 16
    for (int r = 0; r < W; ++r) row[r] = r < R ? load(from + r * stride) * factor : vf{};
  } else {
#pragma GCC unroll 16
    for (int r = 0; r < W; ++r) row[r] = r < count ? load_partial(from + r * stride, width) * factor : vf{};
  }
}

// Stores the first `count` rows, each a whole vector.
LIMELIGHT_INLINE void store_rows(const vf (&row)[W], int64_t count, float* into, int64_t stride) {
#pragma GCC unroll 16
  for (int r = 0; r < W; ++r)
    if (r < count) store(into + r * stride, row[r]);
}

// Packs rows of `from` (count × depth, row stride in elements) times `factor` into transposed panels of NR rows:
// into[panel][k][r], where rows after the last are 0. This is B of S = Q·Kᵀ, with the keys as rows.
template <class T>
void pack_panels(const T* from, int64_t stride, int64_t count, int64_t depth, float* into, float factor = 1) {
  for (int64_t p = 0; p < count; p += NR, into += NR * depth) {
    for (int64_t k = 0; k < depth; k += W) {
      const int64_t width = imin(W, depth - k);
      // Many short rows side by side are more streams than the hardware prefetcher tracks.
      if (k * static_cast<int64_t>(sizeof(T)) % kLineBytes == 0)
        for (int r = 0; r < NR; ++r) __builtin_prefetch(from + (p + NR + r) * stride + k);
      for (int half = 0; half < NR; half += W) {
        vf row[W];
        load_rows<W>(from + (p + half) * stride + k, stride, count - p - half, width, factor, row);
        transpose(row);
        store_rows(row, width, into + k * NR + half, NR);
      }
    }
  }
}

// Packs rows of `from` times `factor` into blocks of MR rows, into[block][k][r], where rows after the last are 0.
// This is A of S = Q·Kᵀ. Each k is written in whole vectors, which run over into the next k, so `into` needs W
// more floats after the last block.
template <class T>
void pack_blocks(const T* from, int64_t stride, int64_t count, int64_t depth, float factor, float* into) {
  for (int64_t first = 0; first < count; first += MR, into += MR * depth) {
    const int64_t rows = imin(MR, count - first);
    for (int64_t k = 0; k < depth; k += W) {
      const int64_t width = imin(W, depth - k);
      for (int64_t r = round_up(MR, W) - W; r >= 0;
           r -= W) {  // backwards: the last vector is the one that runs over
        vf row[W];
        load_rows<(MR < W ? MR : W)>(from + (first + r) * stride + k, stride, rows - r, width, factor, row);
        transpose(row);
        store_rows(row, width, into + k * MR + r, MR);
      }
    }
  }
}

// The stride between panels of pack_columns. The spare row keeps panels, which are written side by side, from
// mapping to the same cache set.
LIMELIGHT_INLINE int64_t column_panel(int64_t count) { return (count + 1) * NR; }

// Packs rows of `from` into panels of NR columns, into[panel][row][c], where columns after the last are 0. This is
// B of O = P·V: a panel is contiguous, so that it fits the L1 cache whatever the strides of `from`.
template <class T>
void pack_columns(const T* from, int64_t stride, int64_t count, int64_t width, float* into) {
  for (int64_t r = 0; r < count; ++r) {
    const T* row = from + r * stride;
    float* to = into + r * NR;
    int64_t c = 0;
    for (; c + NR <= width; c += NR, to += column_panel(count))
      store(to, load(row + c)), store(to + W, load(row + c + W));
    if (c < width) load_row(row + c, to, width - c, NR);
  }
}

// Packs rows of `from` as contiguous float rows of `padded` ≥ width columns, the rest 0.
template <class T>
void pack_rows(const T* from, int64_t stride, int64_t count, int64_t width, int64_t padded, float* into) {
  for (int64_t r = 0; r < count; ++r) {
    if (r + kAhead < count) prefetch_row(from + (r + kAhead) * stride, width);
    load_row(from + r * stride, into + r * padded, width, padded);
  }
}

}  // namespace limelight::LIMELIGHT_ISA
