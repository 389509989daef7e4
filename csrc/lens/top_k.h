// The largest values of a row, kept while it passes by.
#pragma once

#include "simd/vector.h"

namespace limelight::LIMELIGHT_ISA {

// The largest values of a row and the keys they stand at, in no order until `sort`. A value of 0 is none.
struct TopK {
  float* value;
  int64_t* key;
  int64_t count;

  void clear() const {
    for (int64_t t = 0; t < count; ++t) value[t] = 0, key[t] = -1;
  }

  // Offers the values row[0 … n) at keys j0 …; n is a multiple of W.
  void offer(const float* row, int64_t n, int64_t j0) const {
    if (count <= W) return offer_to(InRegisters<1>(*this), row, n, j0);
    if (count <= 2 * W) return offer_to(InRegisters<2>(*this), row, n, j0);
    offer_to(InMemory(*this), row, n, j0);
  }

  void scale(float factor) const {
    for (int64_t t = 0; t < count; ++t) value[t] *= factor;
  }

  // Largest first, and of equal ones the first key first; what was scaled down to nothing has no key.
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

  // The values held, as a scan needs them: `bar`, which a new one must exceed, and `put`, which lets it take the
  // place of the least. A few stay in registers: a put waits for the one before, and memory between the two would
  // be most of its time.
  template <int N>
  struct InRegisters {
    const TopK& top;
    vf values[N];
    float least, bar;

    explicit InRegisters(const TopK& top) : top(top) {
      for (int v = 0; v < N; ++v) values[v] = top.vector(v * W);
      bar = least = least_of(values);
    }

    // Of a new row most values need not be looked at one by one: `count` of them reach the least of as many maxima
    // over disjoint parts.
    void raise_bar(const float* row, int64_t n) {
      if (least != 0 || n < 2 * N * W) return;
      vf maxima[N] = {};
      for (int64_t t = 0; t + N * W <= n; t += N * W)
        for (int v = 0; v < N; ++v) maxima[v] = vmax(load(row + t + v * W), maxima[v]);
      bar = just_below(N == 1 ? reached(maxima[0]) : least_of(maxima));
    }

    LIMELIGHT_INLINE void put(float x, int64_t at) {
      int place = 0;
      for (int v = N - 1; v >= 0; --v)
        if (const uint32_t equal = lane_bits(values[v] == least)) place = v * W + __builtin_ctz(equal);
      for (int v = 0; v < N; ++v) values[v] = select(iota() + v * W == place, splat(x), values[v]);
      top.key[place] = at;
      least = least_of(values);
      bar = least > bar ? least : bar;
    }

    void save() const {
      for (int v = 0; v < N; ++v)
        if (top.count > v * W) store_some(top.value + v * W, values[v], top.count - v * W);
    }

    template <int parts = W>
    float reached(vf maxima) const {
      if constexpr (parts > 1)
        if (parts / 2 >= top.count) return reached<parts / 2>(vmax(maxima, exchange<parts / 2>(maxima)));
      return hmin(maxima);
    }
  };

  struct InMemory {
    const TopK& top;
    float bar;

    explicit InMemory(const TopK& top) : top(top) { update(); }
    void raise_bar(const float*, int64_t) const {}
    void put(float x, int64_t at) {
      int64_t place = 0;
      while (top.value[place] != bar) ++place;
      top.value[place] = x, top.key[place] = at;
      update();
    }
    void save() const {}

    void update() {
      vf rest = splat(kInfinity);
      for (int64_t t = 0; t < top.count; t += W) rest = vmin(top.vector(t), rest);
      bar = hmin(rest);
    }
  };

  template <class Held>
  static void offer_to(Held held, const float* row, int64_t n, int64_t j0) {
    held.raise_bar(row, n);
    int64_t t = 0;
    for (; t + kBatch * W <= n; t += kBatch * W) {
      vi above = load(row + t) > held.bar;
#pragma GCC unroll 16
      for (int u = 1; u < kBatch; ++u) above |= load(row + t + u * W) > held.bar;
      if (any_lane(above)) take(row, t, kBatch, j0, held);
    }
    if (t < n) take(row, t, (n - t) / W, j0, held);
    held.save();
  }

  // Those of `vectors` from row[t] that exceed the bar. One word for many, because every test that may go either
  // way costs more than a comparison.
  template <class Held>
  static void take(const float* row, int64_t t, int64_t vectors, int64_t j0, Held& held) {
    uint64_t above = 0;
    for (int64_t u = 0; u < vectors; ++u)
      above |= static_cast<uint64_t>(lane_bits(load(row + t + u * W) > held.bar)) << u * W;
    for (; above; above &= above - 1) {
      const int64_t at = t + __builtin_ctzll(above);
      if (row[at] > held.bar) held.put(row[at], j0 + at);  // it may have risen since
    }
  }

  // Values t … t + W, +∞ where there are no more.
  vf vector(int64_t t) const {
    if (t + W <= count) return load(value + t);
    return select(iota() < static_cast<int32_t>(count - t), load_partial(value + t, count - t), splat(kInfinity));
  }
  // The next float below a positive one; 0 below 0.
  static float just_below(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits -= x > 0;
    std::memcpy(&x, &bits, sizeof bits);
    return x;
  }
  template <int N>
  static float least_of(const vf (&values)[N]) {
    vf least = values[0];
    for (int v = 1; v < N; ++v) least = vmin(values[v], least);
    return hmin(least);
  }
  static vf vmin(vf a, vf b) { return -vmax(-a, -b); }
  static float hmin(vf v) { return -hmax(-v); }
};

}  // namespace limelight::LIMELIGHT_ISA
