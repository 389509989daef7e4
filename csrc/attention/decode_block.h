// A block of keys and the queries that share them: scores, weights, weighted sums of the values.
#pragma once

#include <cmath>

#include "attention/decode_plan.h"
#include "attention/scores.h"

namespace limelight::LIMELIGHT_ISA::decoding {

// spread[stream][r] = query row r · the stream's key, not yet summed over the lanes of the vector, for `Rows`
// queries. A single query alternates between two sums, for eight independent chains in all.
template <int Streams, int Rows, class T>
LIMELIGHT_INLINE void dot_rows(const float* queries, int64_t query_stride, const T* const (&key)[Streams],
                               int64_t d, vf* spread, int64_t stream_stride, int64_t row_stride) {
  constexpr int kTurns = 2 / Rows;
  vf sum[kTurns][Rows][Streams] = {};
  int64_t c = 0;
  for (; c + kTurns * W <= d; c += kTurns * W)
    for (int u = 0; u < kTurns; ++u) {
      vf query[Rows];
      for (int r = 0; r < Rows; ++r) query[r] = load(queries + r * query_stride + c + u * W);
      for (int x = 0; x < Streams; ++x) {
        const vf channel = load(key[x] + c + u * W);
        for (int r = 0; r < Rows; ++r) sum[u][r][x] += query[r] * channel;
      }
    }
  for (; c < d; c += W)
    for (int x = 0; x < Streams; ++x) {
      const vf channel = load_some(key[x] + c, d - c);
      for (int r = 0; r < Rows; ++r) sum[0][r][x] += load(queries + r * query_stride + c) * channel;
    }
  for (int r = 0; r < Rows; ++r)
    for (int x = 0; x < Streams; ++x) {
      for (int u = 1; u < kTurns; ++u) sum[0][r][x] += sum[u][r][x];
      spread[x * stream_stride + r * row_stride] = sum[0][r][x];
    }
}

// scores[r][stream][step] of a block; up to the next multiple of W the values after the last step are undefined.
// The scores of W steps are summed at once, by one transpose of what dot_rows left in `spread` (stream, row, W).
template <int Streams, class T>
void score_block(const DecodePlan& plan, const Block& block, const T* keys, const float* queries, vf* spread,
                 float* scores) {
  const int64_t stride = plan.p.key.stride[2], d = plan.p.d(), rows = plan.rows, padded = plan.d;
  for (int64_t t = 0; t < block.steps; t += W) {
    for (int64_t u = 0; u < imin(W, block.steps - t); ++u) {
      const T* key[Streams];
      for (int x = 0; x < Streams; ++x) key[x] = keys + (block.j0 + x * block.stream_stride + t + u) * stride;
      int64_t r = 0;
      for (; r + 2 <= rows; r += 2)
        dot_rows<Streams, 2>(queries + r * padded, padded, key, d, spread + r * W + u, rows * W, W);
      if (r < rows) dot_rows<Streams, 1>(queries + r * padded, padded, key, d, spread + r * W + u, rows * W, W);
    }
    for (int64_t x = 0; x < Streams; ++x)
      for (int64_t r = 0; r < rows; ++r) {
        vf sum[W];
        for (int u = 0; u < W; ++u) sum[u] = spread[(x * rows + r) * W + u];
        store(scores + r * kDecodeKeys + x * kStreamKeys + t, hsum_rows(sum));
      }
  }
}

// Replaces scores by weights 2^(score − row_max), after dropout, and rescales earlier sums to the new maximum.
template <int Streams>
void softmax_row(const DecodePlan& plan, const RowIndex& at, const Block& block, float* scores, int64_t r,
                 const PartialResult& partial) {
  const auto each = [&](auto&& body) {
    for (int64_t x = 0; x < Streams; ++x)
      for (int64_t t = 0; t < block.steps; t += W)
        body(scores + x * kStreamKeys + t, block.j0 + x * block.stream_stride + t);
  };
  vf largest = splat(kMasked);
  each([&](float* here, int64_t) { largest = vmax(load(here), largest); });
  const float old_max = partial.row_max[r], block_max = hmax(largest);
  const float new_max = block_max > old_max ? block_max : old_max;
  const float base = new_max == kMasked ? 0.0f : new_max;  // no key allowed yet: −inf − 0 gives weights of 0
  vf total{};
  each([&](float* here, int64_t) {
    const vf weight = exp2(load(here) - base);
    total += weight;
    store(here, weight);
  });
  if (new_max != old_max) {
    const float shrink = std::exp2(old_max - new_max);
    partial.row_sum[r] *= shrink;
    float* sum = partial.out + r * plan.e;
    for (int64_t c = 0; c < plan.e; c += W) store(sum + c, load(sum + c) * shrink);
    partial.row_max[r] = new_max;
  }
  partial.row_sum[r] += hsum(total);
  if (plan.p.dropout > 0) {
    const uint32_t row_seed = plan.dropout.row_seed(at.b * plan.p.h() + at.h, at.i);
    each([&](float* here, int64_t j) { store(here, select(plan.dropout.keep(row_seed, j), load(here), vf{})); });
  }
}

// sums[r] += Σ weights[r][stream] · the stream's value row, for `Rows` sums.
template <int Streams, int Rows, class T>
LIMELIGHT_INLINE void add_rows(const float* weights, const T* const (&value)[Streams], int64_t e, float* sums,
                               int64_t padded) {
  vf weight[Rows][Streams];
  for (int r = 0; r < Rows; ++r)
    for (int x = 0; x < Streams; ++x) weight[r][x] = splat(weights[r * kDecodeKeys + x * kStreamKeys]);
  const auto add = [&](int64_t c, const vf(&values)[Streams]) {
    for (int r = 0; r < Rows; ++r) {
      vf total = load(sums + r * padded + c);
      for (int x = 0; x < Streams; ++x) total += weight[r][x] * values[x];
      store(sums + r * padded + c, total);
    }
  };
  int64_t c = 0;
  vf values[Streams];
  for (; c + W <= e; c += W) {
    for (int x = 0; x < Streams; ++x) values[x] = load(value[x] + c);
    add(c, values);
  }
  if (c < e) {
    for (int x = 0; x < Streams; ++x) values[x] = load_partial(value[x] + c, e - c);
    add(c, values);
  }
}

template <int Streams, class T>
void add_block(const DecodePlan& plan, const Block& block, const T* values, const float* weights, float* sums) {
  const int64_t stride = plan.p.value.stride[2], e = plan.p.e(), rows = plan.rows, padded = plan.e;
  for (int64_t t = 0; t < block.steps; ++t) {
    const T* value[Streams];
    for (int x = 0; x < Streams; ++x) value[x] = values + (block.j0 + x * block.stream_stride + t) * stride;
    int64_t r = 0;
    for (; r + 2 <= rows; r += 2)
      add_rows<Streams, 2>(weights + r * kDecodeKeys + t, value, e, sums + r * padded, padded);
    if (r < rows) add_rows<Streams, 1>(weights + r * kDecodeKeys + t, value, e, sums + r * padded, padded);
  }
}

}  // namespace limelight::LIMELIGHT_ISA::decoding
