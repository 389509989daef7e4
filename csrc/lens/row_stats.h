// Statistics of each query, recorded in the pass that computes the output.
//
// Running values are stored in the result tensors, in the units of the pass (scores in log2 units, sums not yet
// divided); `finish` converts each row to the final statistics.
#pragma once

#include "attention/forward_tile.h"
#include "attention/scores.h"
#include "lens/statistics.h"
#include "lens/top_k.h"

namespace limelight::LIMELIGHT_ISA {

// Σ term(t) over t = 0, W, 2W … < count, in four independent sums so that additions do not wait for one another.
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
  float row_max, row_sum;  // the largest score in log2 units, Σ 2^(score − row_max)
};

// Scores or weights of query i with keys j0 … j0 + count. `data` is readable up to the next multiple of W, where
// scores are −inf and weights 0.
struct Row {
  int64_t h, i, j0, count;
  const float* data;
};

class RowRecorder {
 public:
  static constexpr bool active = true;

  RowRecorder(const Problem& p, const RowStats& stats, int64_t b) : p_(p), s_(stats), b_(b) {}

  void init(int64_t h, int64_t i) const {
    const int64_t at = row_index(h, i);
    if (s_.top) top_k(at).clear();
    if (s_.max_score) s_.max_score[at] = kMasked;
    if (s_.entropy) s_.entropy[at] = 0;
    if (s_.distance) s_.distance[at] = 0;
    if (s_.band) s_.band[at] = 0;
    for (int64_t c = 0; c < s_.column_count; ++c) s_.columns[at * s_.column_count + c] = 0;
  }

  // On the general path: the final scores of a row, before they become weights.
  void before_softmax(const Row& row, RowState state) {
    previous_ = state;
    if (p_.sinks && s_.max_score) {  // row_max may be the sink's score, which is not a key's
      vf largest = splat(s_.max_score[row_index(row.h, row.i)]);
      for (int64_t t = 0; t < row.count; t += W) largest = vmax(load(row.data + t), largest);
      s_.max_score[row_index(row.h, row.i)] = hmax(largest);
    }
    if (s_.entropy)
      for (int64_t t = 0; t < row.count; t += W) store(scores_ + t, load(row.data + t));
  }

  // On the general path: the weights 2^(score − row_max) of the same row.
  void after_softmax(const Row& row, RowState state) const {
    const int64_t at = row_index(row.h, row.i);
    float shrink = 1;
    if (state.row_max > previous_.row_max)
      shrink = previous_.row_sum == 0 ? 0 : exp2(splat(previous_.row_max - state.row_max))[0];
    if (s_.entropy) {
      float& sum = s_.entropy[at];  // Σ weight · (score − row_max)
      if (shrink != 1)
        sum = shrink == 0 ? 0 : shrink * (sum + (previous_.row_max - state.row_max) * previous_.row_sum);
      sum += entropy_sum(row, state.row_max);
    }
    if (shrink != 1) {
      if (s_.distance) s_.distance[at] *= shrink;
      if (s_.band) s_.band[at] *= shrink;
      if (s_.top) top_k(at).scale(shrink);
      for (int64_t c = 0; c < s_.column_count; ++c) s_.columns[at * s_.column_count + c] *= shrink;
    }
    if (s_.distance) s_.distance[at] += distance_sum(row);
    add_weights(row, at);
  }

  // On the fast path, where scores become weights in registers: `begin_tile`, `record` for each row of a register
  // block, `end_tile_row` for each row. `record` must not call a function: that would spill the block from the
  // registers.
  void begin_tile(int64_t rows) {
    for (int64_t t = 0; t < rows * W; t += W) {
      store(max_exponents_ + t, splat(kMasked));
      store(entropy_sums_ + t, vf{});
      store(distance_sums_ + t, vf{});
    }
  }

  // Row r of the tile, query i with the NR keys from j: weight = 2^exponent, exponent = score − row_max.
  LIMELIGHT_INLINE void record(int64_t r, int64_t i, int64_t j, const vf (&exponent)[2], const vf (&weight)[2]) {
    float *max_exponent = max_exponents_ + r * W, *entropy = entropy_sums_ + r * W,
          *distance = distance_sums_ + r * W;
    if (s_.max_score) store(max_exponent, vmax(exponent[0], vmax(exponent[1], load(max_exponent))));
    if (s_.entropy) {
      const vf least = splat(kMinExponent);
      store(entropy, load(entropy) + weight[0] * vmax(exponent[0], least) + weight[1] * vmax(exponent[1], least));
    }
    if (s_.distance) {
      const int64_t offset = i + p_.position_shift() - j;
      store(distance, load(distance) + weight[0] * distances(offset) + weight[1] * distances(offset - W));
    }
  }

  // The weights of row r of the tile.
  void end_tile_row(const Row& row, int64_t r, float row_max) const {
    const int64_t at = row_index(row.h, row.i);
    if (s_.max_score) s_.max_score[at] = max_float(hmax(load(max_exponents_ + r * W)) + row_max, s_.max_score[at]);
    if (s_.entropy) s_.entropy[at] += hsum(load(entropy_sums_ + r * W));
    if (s_.distance) s_.distance[at] += hsum(load(distance_sums_ + r * W));
    add_weights(row, at);
  }

  void finish(int64_t h, int64_t i, RowState state) const {
    const int64_t at = row_index(h, i);
    const float factor = row_normaliser(p_, at, state.row_max, state.row_sum).factor;
    if (s_.max_score) {
      const float largest = p_.sinks ? s_.max_score[at] : max_float(state.row_max, s_.max_score[at]);
      s_.max_score[at] = largest * static_cast<float>(kLn2);
    }
    if (s_.entropy) s_.entropy[at] = entropy_of(h, at, state, factor);
    if (s_.distance) s_.distance[at] *= factor;
    if (s_.band) s_.band[at] *= factor;
    for (int64_t c = 0; c < s_.column_count; ++c) s_.columns[at * s_.column_count + c] *= factor;
    if (!s_.top) return;
    top_k(at).scale(factor);
    top_k(at).sort();
  }

 private:
  int64_t row_index(int64_t h, int64_t i) const { return (b_ * p_.h() + h) * p_.i() + i; }
  TopK top_k(int64_t at) const {
    return {s_.top + at * s_.top_count, s_.top_keys + at * s_.top_count, s_.top_count};
  }

  static float max_float(float a, float b) { return a > b ? a : b; }

  // −Σ w·log w over the keys, where w = factor · 2^(score − row_max). The running sums include the sink, whose
  // share is subtracted.
  float entropy_of(int64_t h, int64_t at, RowState state, float factor) const {
    if (factor == 0) return 0;
    float sum = s_.entropy[at], mass = state.row_sum;
    const float sink = sink_score(p_, h);
    if (sink != kMasked) {
      const float exponent = sink - state.row_max, weight = exp2(splat(exponent))[0];
      sum -= weight * max_float(exponent, kMinExponent), mass -= weight;
    }
    return -factor * (static_cast<float>(kLn2) * sum + mass * __builtin_logf(factor));
  }

  // The statistics that need only the weights of a row, on either path.
  void add_weights(const Row& row, int64_t at) const {
    if (s_.top) top_k(at).offer(row.data, round_up(row.count, W), row.j0);
    for (int64_t c = 0; c < s_.column_count; ++c) {
      const int64_t t = s_.column_keys[c] - row.j0;
      if (t >= 0 && t < row.count) s_.columns[at * s_.column_count + c] = row.data[t];
    }
    if (s_.band) s_.band[at] += band_sum(row);
  }

  // Exponents are clamped here: that of a masked key is −inf, and −inf times its weight of 0 would be NaN.
  static constexpr float kMinExponent = -200;

  // Σ weight · (score − row_max)
  float entropy_sum(const Row& row, float row_max) const {
    const vf base = splat(row_max == kMasked ? 0 : row_max), least = splat(kMinExponent);
    return total(row.count, [&](int64_t t) { return load(row.data + t) * vmax(load(scores_ + t) - base, least); });
  }

  // Σ weight · |p_i − j|
  float distance_sum(const Row& row) const {
    const int64_t offset = row.i + p_.position_shift() - row.j0;
    return total(row.count, [&](int64_t t) { return load(row.data + t) * distances(offset - t); });
  }

  // Σ weight over |p_i − j| ≤ band_reach
  float band_sum(const Row& row) const {
    const int64_t offset = row.i + p_.position_shift() - row.j0;
    const int64_t low = offset - s_.band_reach, high = offset + s_.band_reach + 1;
    float sum = 0;
    for (int64_t t = low > 0 ? low : 0; t < high && t < row.count; ++t) sum += row.data[t];
    return sum;
  }

  const Problem& p_;
  const RowStats& s_;
  int64_t b_;
  RowState previous_{0, 0};  // of the row between before_softmax and after_softmax
  float scores_[kScoreStride];
  // Of each row of a tile: the largest exponent, Σ weight · exponent, Σ weight · distance.
  alignas(64) float max_exponents_[kForwardQueries * W], entropy_sums_[kForwardQueries * W],
      distance_sums_[kForwardQueries * W];
};

// No lens: nothing is recorded, and no code is generated.
struct NoLens {
  static constexpr bool active = false;
};

}  // namespace limelight::LIMELIGHT_ISA
