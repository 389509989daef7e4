// Statistics of each query, recorded in the pass that computes the output.
//
// Running values live in the result tensors, in the units of the pass (scores in log2 units, sums not yet
// divided); `finish` turns each row into what the caller asked for.
#pragma once

#include "attention/forward_tile.h"
#include "attention/scores.h"
#include "lens/statistics.h"
#include "lens/top_k.h"

namespace limelight::LIMELIGHT_ISA {

// Σ term(t) over t = 0, W, 2W … < count, in four sums so that no addition waits
// for the one before it.
template <class Term>
LIMELIGHT_INLINE float total(int64_t count, const Term& term) {
  vf sum[4] = {};
  int64_t t = 0;
  for (; t + 4 * W <= count; t += 4 * W) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) sum[u] += term(t + u * W);
  }
  for (; t < count; t += W) sum[0] += term(t);
  return hsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// The running state of a row of the forward sweep.
struct RowState {
  float row_max, row_sum;  // largest score in log2 units, Σ 2^(score − row_max)
};

// A row of scores or weights with keys j0 … j0 + count; readable up to the next
// multiple of W, where scores are −inf and weights 0.
struct Row {
  int64_t h, i, j0, count;
  const float* data;
};

class RowRecorder {
 public:
  static constexpr bool active = true;

  RowRecorder(const Problem& p, const RowStats& stats, int64_t b) : p_(p), n_(stats), b_(b) {}

  void init(int64_t h, int64_t i) const {
    const int64_t at = place(h, i);
    if (n_.top) top_k(at).clear();
    if (n_.max_score) n_.max_score[at] = kMasked;
    if (n_.entropy) n_.entropy[at] = 0;
    if (n_.distance) n_.distance[at] = 0;
    if (n_.band) n_.band[at] = 0;
    for (int64_t c = 0; c < n_.column_count; ++c) n_.columns[at * n_.column_count + c] = 0;
  }

  // Where scores become weights row by row: the final scores of a row, before.
  void before(const Row& row, RowState state) {
    old_ = state;
    if (p_.sinks && n_.max_score) {  // the row max is the sink's score as well
      vf best = splat(n_.max_score[place(row.h, row.i)]);
      for (int64_t t = 0; t < row.count; t += W) best = vmax(load(row.data + t), best);
      n_.max_score[place(row.h, row.i)] = hmax(best);
    }
    if (n_.entropy)
      for (int64_t t = 0; t < row.count; t += W) store(scores_ + t, load(row.data + t));
  }

  // And after: the weights 2^(score − row_max) that they became.
  void after(const Row& row, RowState state) const {
    const int64_t at = place(row.h, row.i);
    float shrink = 1;
    if (state.row_max > old_.row_max)
      shrink = old_.row_sum == 0 ? 0 : exp2(splat(old_.row_max - state.row_max))[0];
    if (n_.entropy) {
      float& sum = n_.entropy[at];  // Σ weight · (score − row_max)
      if (shrink != 1) sum = shrink == 0 ? 0 : shrink * (sum + (old_.row_max - state.row_max) * old_.row_sum);
      sum += spread(row, state.row_max);
    }
    if (shrink != 1) {
      if (n_.distance) n_.distance[at] *= shrink;
      if (n_.band) n_.band[at] *= shrink;
      if (n_.top) top_k(at).scale(shrink);
      for (int64_t c = 0; c < n_.column_count; ++c) n_.columns[at * n_.column_count + c] *= shrink;
    }
    if (n_.distance) n_.distance[at] += reach(row);
    gather(row, at);
  }

  // Where scores become weights in registers: `open` a tile, record each row of a block, `close` each row. Between
  // the two nothing may call a function: that would push the whole block out of the registers.
  void open(int64_t rows) {
    for (int64_t t = 0; t < rows * W; t += W) {
      store(largest_ + t, splat(kMasked));
      store(spread_ + t, vf{});
      store(reach_ + t, vf{});
    }
  }

  // Weights 2^rise of row r of the tile, rise = score − base: query i with the NR keys from j.
  LIMELIGHT_INLINE void record(int64_t r, int64_t i, int64_t j, const vf (&rise)[2], const vf (&weight)[2]) {
    float *largest = largest_ + r * W, *spread = spread_ + r * W, *reach = reach_ + r * W;
    if (n_.max_score) store(largest, vmax(rise[0], vmax(rise[1], load(largest))));
    if (n_.entropy) {
      const vf least = splat(kLeast);
      store(spread, load(spread) + weight[0] * vmax(rise[0], least) + weight[1] * vmax(rise[1], least));
    }
    if (n_.distance) {
      const int64_t away = i + p_.position_shift() - j;
      store(reach, load(reach) + weight[0] * distances(away) + weight[1] * distances(away - W));
    }
  }

  // The weights of row r.
  void close(const Row& row, int64_t r, float base) const {
    const int64_t at = place(row.h, row.i);
    if (n_.max_score) n_.max_score[at] = max_float(hmax(load(largest_ + r * W)) + base, n_.max_score[at]);
    if (n_.entropy) n_.entropy[at] += hsum(load(spread_ + r * W));
    if (n_.distance) n_.distance[at] += hsum(load(reach_ + r * W));
    gather(row, at);
  }

  void finish(int64_t h, int64_t i, RowState state) const {
    const int64_t at = place(h, i);
    const float factor = end_row(p_, at, state.row_max, state.row_sum).factor;
    if (n_.max_score) {
      const float largest = p_.sinks ? n_.max_score[at] : max_float(state.row_max, n_.max_score[at]);
      n_.max_score[at] = largest * static_cast<float>(kLn2);
    }
    if (n_.entropy) n_.entropy[at] = entropy_of(h, at, state, factor);
    if (n_.distance) n_.distance[at] *= factor;
    if (n_.band) n_.band[at] *= factor;
    for (int64_t c = 0; c < n_.column_count; ++c) n_.columns[at * n_.column_count + c] *= factor;
    if (!n_.top) return;
    top_k(at).scale(factor);
    top_k(at).sort();
  }

 private:
  int64_t place(int64_t h, int64_t i) const { return (b_ * p_.h() + h) * p_.i() + i; }
  TopK top_k(int64_t at) const {
    return {n_.top + at * n_.top_count, n_.top_keys + at * n_.top_count, n_.top_count};
  }

  static float max_float(float a, float b) { return a > b ? a : b; }

  // −Σ w·log w over the keys, where w = factor · 2^(score − row_max). What was summed counts the sink as a key.
  float entropy_of(int64_t h, int64_t at, RowState state, float factor) const {
    if (factor == 0) return 0;
    float sum = n_.entropy[at], mass = state.row_sum;
    const float sink = sink_score(p_, h);
    if (sink != kMasked) {
      const float rise = sink - state.row_max, drawn = exp2(splat(rise))[0];
      sum -= drawn * max_float(rise, kLeast), mass -= drawn;
    }
    return -factor * (static_cast<float>(kLn2) * sum + mass * __builtin_logf(factor));
  }

  // What is read off the weights of a row, whichever way they were made.
  void gather(const Row& row, int64_t at) const {
    if (n_.top) top_k(at).offer(row.data, round_up(row.count, W), row.j0);
    for (int64_t c = 0; c < n_.column_count; ++c) {
      const int64_t t = n_.column_keys[c] - row.j0;
      if (t >= 0 && t < row.count) n_.columns[at * n_.column_count + c] = row.data[t];
    }
    if (n_.band) n_.band[at] += near(row);
  }

  // A score that has no weight left may be −inf: times its weight of 0 it would be NaN, so it is held here.
  static constexpr float kLeast = -200;

  // Σ weight · (score − row_max)
  float spread(const Row& row, float row_max) const {
    const vf base = splat(row_max == kMasked ? 0 : row_max), least = splat(kLeast);
    return total(row.count, [&](int64_t t) { return load(row.data + t) * vmax(load(scores_ + t) - base, least); });
  }

  // Σ weight · |p_i − j|
  float reach(const Row& row) const {
    const int64_t away = row.i + p_.position_shift() - row.j0;
    return total(row.count, [&](int64_t t) { return load(row.data + t) * distances(away - t); });
  }

  // Σ weight over |p_i − j| ≤ band
  float near(const Row& row) const {
    const int64_t away = row.i + p_.position_shift() - row.j0;
    const int64_t low = away - n_.band_reach, high = away + n_.band_reach + 1;
    float sum = 0;
    for (int64_t t = low > 0 ? low : 0; t < high && t < row.count; ++t) sum += row.data[t];
    return sum;
  }

  const Problem& p_;
  const RowStats& n_;
  int64_t b_;
  RowState old_{0, 0};
  float scores_[kScoreStride];
  alignas(64) float largest_[kForwardQueries * W], spread_[kForwardQueries * W],
      reach_[kForwardQueries * W];  // rows of a tile
};

// No lens: nothing is recorded, and no code is generated for it.
struct NoLens {
  static constexpr bool active = false;
};

}  // namespace limelight::LIMELIGHT_ISA
