// What a lens notes in the sweep that computes the output.
//
// The running values live in the result tensors themselves, in units that suit
// the sweep (scores in log2 units, sums not yet divided); `finish` turns each
// row into what the caller asked for.
#pragma once

#include "forward_tile.h"
#include "scores.h"

namespace limelight::LIMELIGHT_ISA {

LIMELIGHT_INLINE bool any(vi v) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)v, (__m512i)v) != 0;
#elif defined(__AVX2__)
  return !_mm256_testz_si256((__m256i)v, (__m256i)v);
#else
  uint64_t half[2];
  static_assert(sizeof half == sizeof v);
  std::memcpy(half, &v, sizeof v);
  return (half[0] | half[1]) != 0;
#endif
}

// One bit a lane.
LIMELIGHT_INLINE uint32_t bits(vi v) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)v, (__m512i)v);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)v));
#else
  uint32_t all = 0;
  for (int t = 0; t < W; ++t) all |= (v[t] ? 1u : 0u) << t;
  return all;
#endif
}

// The greatest values of a row and the keys they stand at, in no order until `sort`. A value of 0 is none.
struct Best {
  float* value;
  int64_t* key;
  int64_t count;

  void clear() const {
    for (int64_t t = 0; t < count; ++t) value[t] = 0, key[t] = -1;
  }

  // What a value must exceed to be taken: the least one that is held.
  float bar() const {
    vf least = splat(kInfinity);
    for (int64_t t = 0; t < count; t += W) least = smaller_of(held(t), least);
    return min_of(least);
  }

  // Takes the place of the least one; `least` is the bar. Gives the new bar.
  float put(float x, int64_t at, float least) const {
    vf rest = splat(kInfinity);
    int64_t place = -1;
    for (int64_t t = 0; t < count; t += W) {
      vf here = held(t);
      const uint32_t equal = place < 0 ? bits(here == least) : 0;
      if (equal) {
        place = t + __builtin_ctz(equal);
        here = select(lanes() == static_cast<int32_t>(place - t), splat(x), here);
      }
      rest = smaller_of(here, rest);
    }
    value[place] = x, key[place] = at;
    return min_of(rest);
  }

  // Offers the values row[0 … n) at keys j0 …; n is a multiple of W.
  void offer(const float* row, int64_t n, int64_t j0) const {
    float least = bar();
    int64_t t = 0;
    for (; t + kBatch * W <= n; t += kBatch * W) {
      vi above = load(row + t) > least;
#pragma GCC unroll 16
      for (int u = 1; u < kBatch; ++u) above |= load(row + t + u * W) > least;
      if (any(above)) least = take(row, t, kBatch, j0, least);
    }
    if (t < n) take(row, t, (n - t) / W, j0, least);
  }

  void scale(float factor) const {
    for (int64_t t = 0; t < count; ++t) value[t] *= factor;
  }

  // Greatest first, and of equal ones the first key first; what was scaled down to nothing has no key.
  void sort() const {
    for (int64_t t = 0; t < count; ++t)
      if (value[t] == 0) key[t] = -1;
    for (int64_t t = 1; t < count; ++t) {
      const float x = value[t];
      const int64_t at = key[t];
      int64_t to = t;
      for (; to > 0 && (value[to - 1] < x || (value[to - 1] == x && key[to - 1] > at)); --to)
        value[to] = value[to - 1], key[to] = key[to - 1];
      value[to] = x, key[to] = at;
    }
  }

 private:
  static constexpr int kBatch = 64 / W;  // vectors whose comparisons fill a word

  // Those of `vectors` from row[t] that are above the bar. One word for many, because every test that may go
  // either way costs more than a comparison. Gives the new bar.
  [[gnu::noinline]] float take(const float* row, int64_t t, int64_t vectors, int64_t j0, float least) const {
    uint64_t above = 0;
    for (int64_t u = 0; u < vectors; ++u)
      above |= static_cast<uint64_t>(bits(load(row + t + u * W) > least)) << u * W;
    for (; above; above &= above - 1) {
      const int64_t at = t + __builtin_ctzll(above);
      if (row[at] > least) least = put(row[at], j0 + at, least);  // the bar may have risen since
    }
    return least;
  }

  vf held(int64_t t) const {
    if (t + W <= count) return load(value + t);
    return select(lanes() < static_cast<int32_t>(count - t), load_part(value + t, count - t), splat(kInfinity));
  }
  static vf smaller_of(vf a, vf b) { return -larger(-a, -b); }
  static float min_of(vf v) { return -max_of(-v); }
};

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
  return sum_of((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// The running state of a row of the forward sweep.
struct RowState {
  float top, sum;  // greatest score in log2 units, Σ 2^(score − top)
};

// A row of scores or weights with keys j0 … j0 + count; readable up to the next
// multiple of W, where scores are −inf and weights 0.
struct Row {
  int64_t h, i, j0, count;
  const float* data;
};

class Watch {
 public:
  static constexpr bool active = true;

  Watch(const Problem& p, const Notes& notes, int64_t b) : p_(p), n_(notes), b_(b) {}

  void start(int64_t h, int64_t i) const {
    const int64_t at = place(h, i);
    if (n_.top) best(at).clear();
    if (n_.max_score) n_.max_score[at] = kNever;
    if (n_.entropy) n_.entropy[at] = 0;
    if (n_.distance) n_.distance[at] = 0;
    if (n_.band) n_.band[at] = 0;
    for (int64_t c = 0; c < n_.column_count; ++c) n_.columns[at * n_.column_count + c] = 0;
  }

  // Where scores become weights row by row: the final scores of a row, before.
  void before(const Row& row, RowState state) {
    old_ = state;
    if (n_.entropy)
      for (int64_t t = 0; t < row.count; t += W) store(scores_ + t, load(row.data + t));
  }

  // And after: the weights 2^(score − top) that they became.
  void after(const Row& row, RowState state) const {
    const int64_t at = place(row.h, row.i);
    float shrink = 1;
    if (state.top > old_.top) shrink = old_.sum == 0 ? 0 : exp2(splat(old_.top - state.top))[0];
    if (n_.entropy) {
      float& sum = n_.entropy[at];  // Σ weight · (score − top)
      if (shrink != 1) sum = shrink == 0 ? 0 : shrink * (sum + (old_.top - state.top) * old_.sum);
      sum += spread(row, state.top);
    }
    if (shrink != 1) {
      if (n_.distance) n_.distance[at] *= shrink;
      if (n_.band) n_.band[at] *= shrink;
      if (n_.top) best(at).scale(shrink);
      for (int64_t c = 0; c < n_.column_count; ++c) n_.columns[at * n_.column_count + c] *= shrink;
    }
    if (n_.distance) n_.distance[at] += reach(row);
    gather(row, at);
  }

  // Where scores become weights in registers: `open` a tile, note each row of a block, `close` each row. Between
  // the two nothing may call a function: that would push the whole block out of the registers.
  void open(int64_t rows) {
    for (int64_t t = 0; t < rows * W; t += W) {
      store(most_ + t, splat(kNever));
      store(spread_ + t, vf{});
      store(reach_ + t, vf{});
    }
  }

  // Weights 2^rise of row r of the tile, rise = score − base: query i with the NR keys from j.
  LIMELIGHT_INLINE void note(int64_t r, int64_t i, int64_t j, const vf (&rise)[2], const vf (&weight)[2]) {
    float *most = most_ + r * W, *spread = spread_ + r * W, *reach = reach_ + r * W;
    if (n_.max_score) store(most, larger(rise[0], larger(rise[1], load(most))));
    if (n_.entropy) {
      const vf least = splat(kLeast);
      store(spread, load(spread) + weight[0] * larger(rise[0], least) + weight[1] * larger(rise[1], least));
    }
    if (n_.distance) {
      const int64_t away = i + p_.position_shift() - j;
      store(reach, load(reach) + weight[0] * distances(away) + weight[1] * distances(away - W));
    }
  }

  // The weights of row r.
  void close(const Row& row, int64_t r, float base) const {
    const int64_t at = place(row.h, row.i);
    if (n_.max_score) n_.max_score[at] = greater_of(max_of(load(most_ + r * W)) + base, n_.max_score[at]);
    if (n_.entropy) n_.entropy[at] += sum_of(load(spread_ + r * W));
    if (n_.distance) n_.distance[at] += sum_of(load(reach_ + r * W));
    gather(row, at);
  }

  void finish(int64_t h, int64_t i, RowState state) const {
    const int64_t at = place(h, i);
    const bool empty = state.sum == 0;
    const float share = empty ? 0 : 1 / state.sum;
    if (n_.max_score) n_.max_score[at] = greater_of(state.top, n_.max_score[at]) * static_cast<float>(kLn2);
    if (n_.entropy)
      n_.entropy[at] = empty ? 0 : __builtin_logf(state.sum) - static_cast<float>(kLn2) * n_.entropy[at] * share;
    if (n_.distance) n_.distance[at] *= share;
    if (n_.band) n_.band[at] *= share;
    for (int64_t c = 0; c < n_.column_count; ++c) n_.columns[at * n_.column_count + c] *= share;
    if (!n_.top) return;
    best(at).scale(share);
    best(at).sort();
  }

 private:
  int64_t place(int64_t h, int64_t i) const { return (b_ * p_.h() + h) * p_.i() + i; }
  Best best(int64_t at) const {
    return {n_.top + at * n_.top_count, n_.top_keys + at * n_.top_count, n_.top_count};
  }

  static float greater_of(float a, float b) { return a > b ? a : b; }

  // What is read off the weights of a row, whichever way they were made.
  void gather(const Row& row, int64_t at) const {
    if (n_.top) best(at).offer(row.data, round_up(row.count, W), row.j0);
    for (int64_t c = 0; c < n_.column_count; ++c) {
      const int64_t t = n_.column_keys[c] - row.j0;
      if (t >= 0 && t < row.count) n_.columns[at * n_.column_count + c] = row.data[t];
    }
    if (n_.band) n_.band[at] += near(row);
  }

  // A score that has no weight left may be −inf: times its weight of 0 it would be NaN, so it is held here.
  static constexpr float kLeast = -200;

  // Σ weight · (score − top)
  float spread(const Row& row, float top) const {
    const vf base = splat(top == kNever ? 0 : top), least = splat(kLeast);
    return total(row.count,
                 [&](int64_t t) { return load(row.data + t) * larger(load(scores_ + t) - base, least); });
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
  const Notes& n_;
  int64_t b_;
  RowState old_{0, 0};
  float scores_[kMaxWords * kWordKeys];
  alignas(64) float most_[kTileRows * W], spread_[kTileRows * W], reach_[kTileRows * W];  // rows of a tile
};

// No lens: nothing is noted, and nothing is left of it in the code.
struct Unwatched {
  static constexpr bool active = false;
};

}  // namespace limelight::LIMELIGHT_ISA
