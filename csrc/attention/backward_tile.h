// The products of the backward pass on one tile: a tile of queries and a block of keys.
//
// With P = 2^(S − lse) and dS = P∘(dP − D + dlse), the five products of a tile are
//
//     S = Q·Kᵀ    dP = dO·Vᵀ    dV += Pᵀ·dO    dK += dSᵀ·Q    dQ += dS·K
//
// Keys are processed in panels of NR. P and dS of a panel are used for dV and dK while they are in the L1 cache.
// dS is kept until the tile is done, so that each read and write of dQ covers many keys.
#pragma once

#include "attention/gemm.h"
#include "masks/coverage.h"

namespace limelight::LIMELIGHT_ISA {

inline constexpr int64_t kBackwardQueries = 128;
inline constexpr int64_t kBackwardKeys = 128;
inline constexpr int64_t kBackwardWords = kBackwardKeys / kWordKeys;
inline constexpr int64_t kBackwardPanels = kBackwardKeys / NR;

// --- register blocks --------------------------------------------------------------------------------

// Calls body(rows as a compile-time constant, first row) for register blocks of nearly equal size that make up the
// rows: a last block of one or two rows would leave most FMA units idle.
template <class Body>
LIMELIGHT_INLINE void in_blocks(Range rows, Body&& body) {
  const int64_t count = rows.high - rows.low, blocks = (count + MR - 1) / MR;
  int64_t first = rows.low;
  for (int64_t t = 0; t < blocks; ++t) {
    const int64_t size = count / blocks + (t < count % blocks);
    with_rows<MR>(size, [&](auto constant) { body(constant, first); });
    first += size;
  }
}

// start[row] + left · panel for NR columns, one row at a time: epilogue(row, half of the columns, sums). A null
// start means 0.
template <class Epilogue>
LIMELIGHT_INLINE void dot_panel(Range rows, int64_t depth, const float* left, int64_t stride, const float* panel,
                                const float* start, Epilogue&& epilogue) {
  in_blocks(rows, [&](auto size, int64_t first) {
    constexpr int R = size;
    vf sum[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = start ? splat(start[first + r]) : vf{};
    fma_block<R, Left::rows>(sum, depth, left + first * stride, stride, panel, NR);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      epilogue(first + r, 0, sum[r][0]);
      epilogue(first + r, 1, sum[r][1]);
    }
  });
}

// into (NR × width) += panelᵀ · right, over `rows` of panel (rows × NR) and right (rows × width).
inline void add_outer(Range rows, int64_t width, const float* panel, const float* right, float* into) {
  const int64_t depth = rows.high - rows.low;
  for (int64_t c = 0; c < width; c += NR)
    in_blocks({0, NR}, [&](auto size, int64_t first) {
      constexpr int R = size;
      vf sum[R][2];
      float* at = into + first * width + c;
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[r][0] = load(at + r * width), sum[r][1] = load(at + r * width + W);
      fma_block<R, Left::columns>(sum, depth, panel + rows.low * NR + first, NR, right + rows.low * width + c,
                                  width);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) store(at + r * width, sum[r][0]), store(at + r * width + W, sum[r][1]);
    });
}

// into[row] (width columns) += Σ over panels of dS · K, for `rows`. dS is panel × kBackwardQueries × NR and zero
// outside of spans[p], the rows that may see a key of panel p.
inline void add_inner(Range rows, int64_t width, const Range* spans, int64_t panels, const float* grad_scores,
                      const float* keys, float* into, int64_t stride) {
  for (int64_t c = 0; c < width; c += NR)
    in_blocks(rows, [&](auto size, int64_t first) {
      constexpr int R = size;
      int64_t low = 0, high = panels;
      const auto outside = [&](int64_t p) { return spans[p].high <= first || spans[p].low >= first + R; };
      while (low < high && outside(low)) ++low;
      while (low < high && outside(high - 1)) --high;
      if (low == high) return;
      vf sum[R][2];
      float* at = into + first * stride + c;
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[r][0] = load(at + r * stride), sum[r][1] = load(at + r * stride + W);
      for (int64_t p = low; p < high; ++p)
        fma_block<R, Left::rows>(sum, NR, grad_scores + (p * kBackwardQueries + first) * NR, NR,
                                 keys + p * NR * width + c, width);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) store(at + r * stride, sum[r][0]), store(at + r * stride + W, sum[r][1]);
    });
}

}  // namespace limelight::LIMELIGHT_ISA
