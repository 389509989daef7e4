// What a lens notes in the sweep that computes the output.
//
// The running values live in the result tensors themselves, in units that suit
// the sweep (scores in log2 units, sums not yet divided); `finish` turns each
// row into what the caller asked for.
#pragma once

#include "scores.h"
#include "simd.h"

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

// The greatest values of a row, greatest first, and the keys they stand at.
// Values must exceed the one the list was cleared with.
struct Best {
  float* value;
  int64_t* key;
  int64_t count;

  void clear(float least) const {
    for (int64_t t = 0; t < count; ++t) value[t] = least, key[t] = -1;
  }

  // Offers row[0 … n), the values at keys j0 …; n is a multiple of W.
  void offer(const float* row, int64_t n, int64_t j0) const {
    float bar = value[count - 1];
    int64_t t = 0;
    for (; t + 4 * W <= n; t += 4 * W) {  // rarely is one of many above the bar
      vi above = load(row + t) > bar;
#pragma GCC unroll 3
      for (int u = 1; u < 4; ++u) above |= load(row + t + u * W) > bar;
      if (any(above)) bar = insert(row + t, 4 * W, j0 + t, bar);
    }
    if (t < n) insert(row + t, n - t, j0 + t, bar);
  }

 private:
  float insert(const float* row, int64_t n, int64_t j0, float bar) const {
    for (int64_t t = 0; t < n; ++t) {
      const float x = row[t];
      if (!(x > bar)) continue;
      int64_t at = count - 1;
      for (; at > 0 && value[at - 1] < x; --at) value[at] = value[at - 1], key[at] = key[at - 1];
      value[at] = x, key[at] = j0 + t;
      bar = value[count - 1];
    }
    return bar;
  }
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
    if (n_.top) best(at).clear(-__builtin_inff());
    if (n_.entropy) n_.entropy[at] = 0;
    if (n_.distance) n_.distance[at] = 0;
    if (n_.band) n_.band[at] = 0;
    for (int64_t c = 0; c < n_.column_count; ++c) n_.columns[at * n_.column_count + c] = -__builtin_inff();
  }

  // The final scores of a row, before they become weights.
  void before(const Row& row, RowState state) {
    const int64_t at = place(row.h, row.i);
    old_ = state;
    if (n_.top) best(at).offer(row.data, (row.count + W - 1) / W * W, row.j0);
    for (int64_t c = 0; c < n_.column_count; ++c) {
      const int64_t t = n_.column_keys[c] - row.j0;
      if (t >= 0 && t < row.count) n_.columns[at * n_.column_count + c] = row.data[t];
    }
    if (n_.entropy)
      for (int64_t t = 0; t < row.count; t += W) store(scores_ + t, load(row.data + t));
  }

  // The weights 2^(score − top) that they became.
  void after(const Row& row, RowState state) const {
    const int64_t at = place(row.h, row.i);
    float shrink = 1;
    if (state.top > old_.top) shrink = old_.sum == 0 ? 0 : exp2(splat(old_.top - state.top))[0];
    if (n_.entropy) {
      float& sum = n_.entropy[at];  // Σ weight · (score − top)
      if (shrink != 1) sum = shrink == 0 ? 0 : shrink * (sum + (old_.top - state.top) * old_.sum);
      sum += spread(row, state.top);
    }
    if (n_.distance) n_.distance[at] = n_.distance[at] * shrink + reach(row);
    if (n_.band) n_.band[at] = n_.band[at] * shrink + near(row);
  }

  void finish(int64_t h, int64_t i, RowState state) const {
    const int64_t at = place(h, i);
    const bool empty = state.sum == 0;
    const float share = empty ? 0 : 1 / state.sum;
    if (n_.max_score) n_.max_score[at] = state.top * static_cast<float>(kLn2);
    if (n_.entropy)
      n_.entropy[at] = empty ? 0 : __builtin_logf(state.sum) - static_cast<float>(kLn2) * n_.entropy[at] * share;
    if (n_.distance) n_.distance[at] *= share;
    if (n_.band) n_.band[at] *= share;
    for (int64_t c = 0; c < n_.column_count; ++c) to_weight(n_.columns[at * n_.column_count + c], state, share);
    if (!n_.top) return;
    const Best found = best(at);
    for (int64_t t = 0; t < found.count; ++t) to_weight(found.value[t], state, share);
  }

 private:
  int64_t place(int64_t h, int64_t i) const { return (b_ * p_.h() + h) * p_.i() + i; }
  Best best(int64_t at) const {
    return {n_.top + at * n_.top_count, n_.top_keys + at * n_.top_count, n_.top_count};
  }

  static void to_weight(float& score, RowState state, float share) {
    score = score == -__builtin_inff() ? 0 : exp2(splat(score - state.top))[0] * share;
  }

  // Σ weight · (score − top). A score that has no weight left may be −inf, so
  // it is held at −200.
  float spread(const Row& row, float top) const {
    const vf base = splat(top == -__builtin_inff() ? 0 : top), least = splat(-200);
    return total(row.count,
                 [&](int64_t t) { return load(row.data + t) * larger(load(scores_ + t) - base, least); });
  }

  // Σ weight · |p_i − j|
  float reach(const Row& row) const {
    // |p_i − j| = |(p_i − j0 − lane) − t|; t stays within a tile, so its float
    // is exact
    const float away = static_cast<float>(row.i + p_.position_shift() - row.j0);
    const vf first = splat(away) - __builtin_convertvector(lanes(), vf);
    return total(row.count, [&](int64_t t) {
      return load(row.data + t) * absolute(first - static_cast<float>(static_cast<int32_t>(t)));
    });
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
};

// No lens: nothing is noted, and nothing is left of it in the code.
struct Unwatched {
  static constexpr bool active = false;
};

}  // namespace limelight::LIMELIGHT_ISA
