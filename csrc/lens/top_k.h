// The largest values of a row, kept while it passes by.
#pragma once

#include "simd/vector.h"

namespace limelight::LIMELIGHT_ISA {

// The greatest values of a row and the keys they stand at, in no order until `sort`. A value of 0 is none.
struct TopK {
  float* value;
  int64_t* key;
  int64_t count;

  void clear() const {
    for (int64_t t = 0; t < count; ++t) value[t] = 0, key[t] = -1;
  }

  // What a value must exceed to be taken: the least one that is held.
  float bar() const {
    vf least = splat(kInfinity);
    for (int64_t t = 0; t < count; t += W) least = vmin(held(t), least);
    return hmin(least);
  }

  // Takes the place of the least one; `least` is the bar. Gives the new bar.
  float put(float x, int64_t at, float least) const {
    vf rest = splat(kInfinity);
    int64_t place = -1;
    for (int64_t t = 0; t < count; t += W) {
      vf here = held(t);
      const uint32_t equal = place < 0 ? lane_bits(here == least) : 0;
      if (equal) {
        place = t + __builtin_ctz(equal);
        here = select(iota() == static_cast<int32_t>(place - t), splat(x), here);
      }
      rest = vmin(here, rest);
    }
    value[place] = x, key[place] = at;
    return hmin(rest);
  }

  // Offers the values row[0 … n) at keys j0 …; n is a multiple of W.
  void offer(const float* row, int64_t n, int64_t j0) const {
    float least = bar();
    int64_t t = 0;
    for (; t + kBatch * W <= n; t += kBatch * W) {
      vi above = load(row + t) > least;
#pragma GCC unroll 16
      for (int u = 1; u < kBatch; ++u) above |= load(row + t + u * W) > least;
      if (any_lane(above)) least = take(row, t, kBatch, j0, least);
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
      above |= static_cast<uint64_t>(lane_bits(load(row + t + u * W) > least)) << u * W;
    for (; above; above &= above - 1) {
      const int64_t at = t + __builtin_ctzll(above);
      if (row[at] > least) least = put(row[at], j0 + at, least);  // the bar may have risen since
    }
    return least;
  }

  vf held(int64_t t) const {
    if (t + W <= count) return load(value + t);
    return select(iota() < static_cast<int32_t>(count - t), load_partial(value + t, count - t), splat(kInfinity));
  }
  static vf vmin(vf a, vf b) { return -vmax(-a, -b); }
  static float hmin(vf v) { return -hmax(-v); }
};

}  // namespace limelight::LIMELIGHT_ISA
