// The softcap, bias, slopes and normalisation of a row of scores, between the two products.
//
// Scores are in log2 units: exp2 is cheaper than exp, and the factor log2(e) is folded into the scale.
#pragma once

#include "attention/problem.h"
#include "masks/coverage.h"
#include "simd/vector.h"

namespace limelight::LIMELIGHT_ISA {

inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2 = 0.6931471805599453;

// The factor by which queries (in the backward pass: keys) are multiplied when they are packed.
LIMELIGHT_INLINE float query_factor(const Problem& p) {
  return static_cast<float>(p.softcap > 0 ? p.scale / p.softcap : p.scale * kLog2E);
}

// Whether anything besides the mask changes the scores after the product.
LIMELIGHT_INLINE bool has_adjustments(const Problem& p) { return p.softcap > 0 || p.bias || p.slopes; }

// A bias in log2 units. Finite values that would overflow are clamped: only −∞ masks, the lowest float does not.
LIMELIGHT_INLINE vf bias_term(vf bias) {
  const vf limit = splat(2.3e38f), size = vabs(bias);
  const vf clamped = (vf)((vi)limit | ((vi)bias & (int32_t)0x80000000));
  return select((size > limit) & (size < splat(kInfinity)), clamped, bias) * static_cast<float>(kLog2E);
}

template <class T>
LIMELIGHT_INLINE void add_bias(float* scores, const T* bias, int64_t stride, int64_t count) {
  if (stride == 1) {
    int64_t t = 0;
    for (; t + W <= count; t += W) store(scores + t, load(scores + t) + bias_term(load(bias + t)));
    if (t < count) store(scores + t, load(scores + t) + bias_term(load_partial(bias + t, count - t)));
    return;
  }
  for (int64_t t = 0; t < count; t += W) {
    T lane[W] = {};
    for (int64_t c = 0; c < imin(W, count - t); ++c) lane[c] = bias[(t + c) * stride];
    store(scores + t, load(scores + t) + bias_term(load(lane)));
  }
}

// The softcap: maps q·k·query_factor to cap · tanh(score/cap) in log2 units.
LIMELIGHT_INLINE void cap_row(const Problem& p, int64_t count, float* scores) {
  const float cap = static_cast<float>(p.softcap * kLog2E);
  for (int64_t t = 0; t < count; t += W) store(scores + t, tanh(load(scores + t)) * cap);
}

// |offset − lane|: the distances of W consecutive keys from a query, where `offset` = p_i − first key. Exact up to
// 2^24 tokens.
LIMELIGHT_INLINE vf distances(int64_t offset) {
  return vabs(splat(static_cast<float>(offset)) - __builtin_convertvector(iota(), vf));
}

// Adds bias and slopes to the scores of query i with keys j0 … j0 + count.
inline void add_bias_and_slopes(const Problem& p, int64_t b, int64_t h, int64_t i, int64_t j0, int64_t count,
                                float* scores) {
  if (p.bias) {
    const int64_t at = p.bias.at(b, h, i) + j0 * p.bias.stride[3];
    dispatch_dtype(p.bias.dtype, [&](auto* type) {
      add_bias(scores, static_cast<decltype(type)>(p.bias.data) + at, p.bias.stride[3], count);
    });
  }
  if (p.slopes) {
    const float slope = static_cast<float>(p.slopes[h] * kLog2E);
    const int64_t offset = i + p.position_shift() - j0;
    for (int64_t t = 0; t < count; t += W) store(scores + t, load(scores + t) - distances(offset - t) * slope);
  }
}

// The score of a head's sink in log2 units, clamped like a bias; −∞ if the call has no sinks.
LIMELIGHT_INLINE float sink_score(const Problem& p, int64_t h) {
  return p.sinks ? bias_term(splat(p.sinks[h]))[0] : kMasked;
}

// What turns the exponentials of a row into weights.
struct RowNormaliser {
  float factor;  // weight = factor · 2^(score − row_max); 0 for a row without keys
  float lse;     // log-sum-exp that the row is normalised by
};

// `row` is the index into b h i; row_sum = Σ 2^(score − row_max) over the keys and the sink. A row normalised by
// an lse of −∞ counts as one without keys.
inline RowNormaliser row_normaliser(const Problem& p, int64_t row, float row_max, float row_sum) {
  RowNormaliser normaliser{0, kMasked};
  if (row_sum != 0) {
    normaliser.factor = 1 / row_sum;
    normaliser.lse =
        row_max == kInfinity ? kInfinity : static_cast<float>(row_max * kLn2 + __builtin_logf(row_sum));
  }
  if (!p.lse) return normaliser;
  // If the provided lse is the row's own, rounded as above, the weights stay the same bit for bit.
  const double lse = p.lse[row], shift = lse == kMasked ? static_cast<double>(kMasked) : normaliser.lse - lse;
  return {normaliser.factor * exp2(splat(static_cast<float>(shift * kLog2E)))[0], static_cast<float>(lse)};
}

// Scores of query i with keys j0 … j0 + count: from q·k·query_factor to their final value in log2 units.
// `scores` is readable and writable up to the next multiple of W.
inline void adjust_row(const Problem& p, int64_t b, int64_t h, int64_t i, int64_t j0, int64_t count,
                       float* scores) {
  if (p.softcap > 0) cap_row(p, count, scores);
  add_bias_and_slopes(p, b, h, i, j0, count, scores);
}

}  // namespace limelight::LIMELIGHT_ISA
