// A block of keys against the queries that share them: scores, weights, weighted sums of the values.
#pragma once

#include <cmath>

#include "attention/decode_plan.h"
#include "attention/scores.h"

namespace limelight::LIMELIGHT_ISA::decoding {

// spread[lane][r] = query row r · that lane's key, not yet added up over the vector's lanes, for `Rows`
// queries. A single query takes turns with two sums, so that eight are under way.
template <int Lanes, int Rows, class T>
LIMELIGHT_INLINE void dot_rows(const float* queries, int64_t query_stride, const T* const (&key)[Lanes], int64_t d,
                               vf* spread, int64_t lane_stride, int64_t row_stride) {
  constexpr int kTurns = 2 / Rows;
  vf sum[kTurns][Rows][Lanes] = {};
  int64_t c = 0;
  for (; c + kTurns * W <= d; c += kTurns * W)
    for (int u = 0; u < kTurns; ++u) {
      vf query[Rows];
      for (int r = 0; r < Rows; ++r) query[r] = load(queries + r * query_stride + c + u * W);
      for (int x = 0; x < Lanes; ++x) {
        const vf channel = load(key[x] + c + u * W);
        for (int r = 0; r < Rows; ++r) sum[u][r][x] += query[r] * channel;
      }
    }
  for (; c < d; c += W)
    for (int x = 0; x < Lanes; ++x) {
      const vf channel = load_some(key[x] + c, d - c);
      for (int r = 0; r < Rows; ++r) sum[0][r][x] += load(queries + r * query_stride + c) * channel;
    }
  for (int r = 0; r < Rows; ++r)
    for (int x = 0; x < Lanes; ++x) {
      for (int u = 1; u < kTurns; ++u) sum[0][r][x] += sum[u][r][x];
      spread[x * lane_stride + r * row_stride] = sum[0][r][x];
    }
}

// scores[r][lane][step] of a block; what stands after the last step is of no meaning. Scores of W steps are
// added up at once, by one transposition of what dot_rows left in `spread` (lane, row, W).
template <int Lanes, class T>
void score_block(const Plan& plan, const Block& block, const T* keys, const float* queries, vf* spread,
                 float* scores) {
  const int64_t stride = plan.p.key.stride[2], d = plan.p.d(), rows = plan.rows, padded = plan.d;
  for (int64_t t = 0; t < block.steps; t += W) {
    for (int64_t u = 0; u < imin(W, block.steps - t); ++u) {
      const T* key[Lanes];
      for (int x = 0; x < Lanes; ++x) key[x] = keys + (block.j0 + x * block.apart + t + u) * stride;
      int64_t r = 0;
      for (; r + 2 <= rows; r += 2)
        dot_rows<Lanes, 2>(queries + r * padded, padded, key, d, spread + r * W + u, rows * W, W);
      if (r < rows) dot_rows<Lanes, 1>(queries + r * padded, padded, key, d, spread + r * W + u, rows * W, W);
    }
    for (int64_t x = 0; x < Lanes; ++x)
      for (int64_t r = 0; r < rows; ++r) {
        vf sum[W];
        for (int u = 0; u < W; ++u) sum[u] = spread[(x * rows + r) * W + u];
        store(scores + r * kDecodeKeys + x * kLaneKeys + t, hsum_rows(sum));
      }
  }
}

// Scores become weights 2^(score − row_max); what was summed before is rescaled to the new maximum.
template <int Lanes>
void softmax_row(const Plan& plan, const RowIndex& at, const Block& block, float* scores, int64_t r,
                 const Part& part) {
  const auto each = [&](auto&& body) {
    for (int64_t x = 0; x < Lanes; ++x)
      for (int64_t t = 0; t < block.steps; t += W)
        body(scores + x * kLaneKeys + t, block.j0 + x * block.apart + t);
  };
  vf largest = splat(kMasked);
  each([&](float* here, int64_t) { largest = vmax(load(here), largest); });
  const float before = part.row_max[r], here_max = hmax(largest);
  const float now = here_max > before ? here_max : before;
  const float zero = now == kMasked ? 0.0f : now;  // nothing allowed yet: −inf − 0 gives weights of 0
  vf total{};
  each([&](float* here, int64_t) {
    const vf weight = exp2(load(here) - zero);
    total += weight;
    store(here, weight);
  });
  if (now != before) {
    const float shrink = std::exp2(before - now);
    part.row_sum[r] *= shrink;
    float* sum = part.out + r * plan.e;
    for (int64_t c = 0; c < plan.e; c += W) store(sum + c, load(sum + c) * shrink);
    part.row_max[r] = now;
  }
  part.row_sum[r] += hsum(total);
  if (plan.p.dropout > 0) {
    const uint32_t word = plan.dropout.row(at.b * plan.p.h() + at.h, at.i);
    each([&](float* here, int64_t j) { store(here, select(plan.dropout.keep(word, j), load(here), vf{})); });
  }
}

// sum[r] += Σ weights[r][lane] · that lane's value row, for `Rows` sums
template <int Lanes, int Rows, class T>
LIMELIGHT_INLINE void add_rows(const float* weights, const T* const (&value)[Lanes], int64_t e, float* sums,
                               int64_t padded) {
  vf weight[Rows][Lanes];
  for (int r = 0; r < Rows; ++r)
    for (int x = 0; x < Lanes; ++x) weight[r][x] = splat(weights[r * kDecodeKeys + x * kLaneKeys]);
  const auto add = [&](int64_t c, const vf(&values)[Lanes]) {
    for (int r = 0; r < Rows; ++r) {
      vf total = load(sums + r * padded + c);
      for (int x = 0; x < Lanes; ++x) total += weight[r][x] * values[x];
      store(sums + r * padded + c, total);
    }
  };
  int64_t c = 0;
  vf values[Lanes];
  for (; c + W <= e; c += W) {
    for (int x = 0; x < Lanes; ++x) values[x] = load(value[x] + c);
    add(c, values);
  }
  if (c < e) {
    for (int x = 0; x < Lanes; ++x) values[x] = load_partial(value[x] + c, e - c);
    add(c, values);
  }
}

template <int Lanes, class T>
void add_block(const Plan& plan, const Block& block, const T* values, const float* weights, float* sums) {
  const int64_t stride = plan.p.value.stride[2], e = plan.p.e(), rows = plan.rows, padded = plan.e;
  for (int64_t t = 0; t < block.steps; ++t) {
    const T* value[Lanes];
    for (int x = 0; x < Lanes; ++x) value[x] = values + (block.j0 + x * block.apart + t) * stride;
    int64_t r = 0;
    for (; r + 2 <= rows; r += 2)
      add_rows<Lanes, 2>(weights + r * kDecodeKeys + t, value, e, sums + r * padded, padded);
    if (r < rows) add_rows<Lanes, 1>(weights + r * kDecodeKeys + t, value, e, sums + r * padded, padded);
  }
}

}  // namespace limelight::LIMELIGHT_ISA::decoding
