// Pooled statistics: sums over queries for each key, map cells, and links ranked by ‖weight · value‖.
//
// A weight is final only when its row is done. Until then a job keeps the weights of its rows and the maxima they
// were computed with: rows × keys floats per thread, which stay in the last-level cache for all but the longest
// sequences. A second pass over them costs far less than a second Q·Kᵀ.
#pragma once

#include <vector>

#include "attention/forward_tile.h"
#include "attention/scores.h"
#include "lens/statistics.h"
#include "lens/top_k.h"

namespace limelight::LIMELIGHT_ISA {

// The weights that one tile of queries gave to one tile of keys.
struct KeptWeights {
  int64_t h, i0, rows;
  int64_t tile;          // first key of the tile
  int64_t skip, count;   // keys tile + skip … tile + skip + count are kept
  const float* weights;  // rows × kScoreStride: 2^(score − base), and 0 from `count` up to a multiple of NR
  const float* base;     // rows: the maxima at that time
  const float *row_max, *row_sum;  // rows: final once the job has visited all keys
};

class PooledAccumulator {
 public:
  PooledAccumulator(const Problem& p, const PooledStats& stats, int64_t b, int64_t piece)
      : p_(p), s_(stats), b_(b), piece_(piece) {}

  void init(int64_t h, int64_t i) const {
    if (s_.top) top_k(h, i).clear();
  }

  void finish(int64_t h, int64_t i) const {
    if (s_.top) top_k(h, i).sort();
  }

  // Adds the weights of all rows of a job, which are final now.
  void gather(const std::vector<KeptWeights>& all) {
    for (const KeptWeights& kept : all) {
      if (kept.h != h_ || kept.tile != tile_) {
        flush();
        h_ = kept.h, tile_ = kept.tile;
      }
      float factor[kForwardQueries + W];  // from kept to final weights
      const int64_t first = (b_ * p_.h() + kept.h) * p_.i() + kept.i0;
      for (int64_t r = 0; r < kept.rows; ++r)
        factor[r] = row_normaliser(p_, first + r, kept.row_max[r], kept.row_sum[r]).factor;
      for (int64_t r = 0; r < kept.rows; r += W) {
        const vf exponent = load_some(kept.base + r, kept.rows - r) - load_some(kept.row_max + r, kept.rows - r);
        store(factor + r, select(load(factor + r) == 0.0f, vf{}, exp2(exponent) * load(factor + r)));
      }
      add(kept, factor);
      if (s_.top)
        for (int64_t r = 0; r < kept.rows; ++r) offer(kept, r, factor[r]);
    }
    flush();
  }

 private:
  // Sums and maxima over the queries of one row of cells, for each key of a tile.
  struct Columns {
    float sum[kForwardKeys + NR] = {}, max[kForwardKeys + NR] = {};

    template <int R>
    LIMELIGHT_INLINE void add(const float* weights, const float* factor, int64_t skip, int64_t count) {
      for (int64_t t = 0; t < count; t += W) {
        vf total = load(sum + skip + t), largest = load(max + skip + t);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const vf weight = load(weights + r * kScoreStride + t) * factor[r];
          total += weight;
          largest = vmax(weight, largest);
        }
        store(sum + skip + t, total);
        store(max + skip + t, largest);
      }
    }
  };

  // Adds kept rows to the columns, which are flushed where the next row of cells begins.
  void add(const KeptWeights& kept, const float* factor) {
    for (int64_t i = kept.i0; i < kept.i0 + kept.rows;) {
      const int64_t cell = i * s_.rows / p_.i();
      const int64_t end = imin(kept.i0 + kept.rows, cell_start(cell + 1, s_.rows, p_.i())) - kept.i0;
      if (cell != cell_) flush();
      cell_ = cell;
      int64_t r = i - kept.i0;
      for (; r + 4 <= end; r += 4)
        columns_.add<4>(kept.weights + r * kScoreStride, factor + r, kept.skip, kept.count);
      for (; r < end; ++r) columns_.add<1>(kept.weights + r * kScoreStride, factor + r, kept.skip, kept.count);
      i = kept.i0 + end;
    }
  }

  // Adds the columns to the key sums and map cells, and clears them.
  void flush() {
    if (cell_ < 0) return;
    const int64_t head = b_ * p_.h() + h_, count = imin(kForwardKeys, p_.j() - tile_);
    if (s_.received) {
      double* to = s_.received + (head * s_.piece_count + piece_) * p_.j() + tile_;
      for (int64_t t = 0; t < count; ++t) to[t] += columns_.sum[t];
    }
    if (s_.map_sum) {
      const int64_t row_start = (head * s_.rows + cell_) * s_.columns;
      for (int64_t t = 0; t < count;) {
        const int64_t c = (tile_ + t) * s_.columns / p_.j();
        const int64_t end = imin(count, cell_start(c + 1, s_.columns, p_.j()) - tile_);
        pool(t, end, s_.map_sum[row_start + c], s_.map_max[row_start + c]);
        t = end;
      }
    }
    columns_ = {};
    cell_ = -1;
  }

  void pool(int64_t t, int64_t end, double& sum, float& max) const {
    float total = 0;
    for (; t < end; ++t) {
      total += columns_.sum[t];
      if (columns_.max[t] > max) max = columns_.max[t];
    }
    sum += total;
  }

  // Offers ‖weight · value‖ of one row to its top links.
  void offer(const KeptWeights& kept, int64_t r, float factor) const {
    const int64_t first = kept.tile + kept.skip;
    const float* norm = norms(kept.h) + first;
    const float* weights = kept.weights + r * kScoreStride;
    float row[kForwardKeys + NR] = {};
    for (int64_t t = 0; t < kept.count; ++t) row[t] = weights[t] * factor * norm[t];
    top_k(kept.h, kept.i0 + r).offer(row, round_up(kept.count, W), first);
  }

  const float* norms(int64_t h) const { return s_.norms + (b_ * p_.g() + h / p_.group()) * p_.j(); }
  TopK top_k(int64_t h, int64_t i) const {
    const int64_t at = ((b_ * p_.h() + h) * p_.i() + i) * s_.top_count;
    return {s_.top + at, s_.top_keys + at, s_.top_count};
  }
  // Position x belongs to cell ⌊x·cells/size⌋; this is the first position of a cell.
  static int64_t cell_start(int64_t cell, int64_t cells, int64_t size) {
    return (cell * size + cells - 1) / cells;
  }

  const Problem& p_;
  const PooledStats& s_;
  int64_t b_, piece_;
  int64_t h_ = -1, tile_ = -1;
  int64_t cell_ = -1;  // the row of cells that columns_ holds; −1: columns_ is empty
  Columns columns_;
};

}  // namespace limelight::LIMELIGHT_ISA
