// The k largest values of a row, maintained while its values arrive.
#pragma once

#include "simd/vector.h"

namespace limelight::LIMELIGHT_ISA {

// The largest values of a row and their keys, unordered until `sort`. A value of 0 marks an empty slot.
struct TopK {
  float* value;
  int64_t* key;
  int64_t count;

  void clear() const {
    for (int64_t t = 0; t < count; ++t) value[t] = 0, key[t] = -1;
  }

  // Offers the values row[0 … n) of the keys from j0; n is a multiple of W.
  void offer(const float* row, int64_t n, int64_t j0) const {
    if (count <= W) return offer_to(InRegisters<1>(*this), row, n, j0);
    if (count <= 2 * W) return offer_to(InRegisters<2>(*this), row, n, j0);
    offer_to(InMemory(*this), row, n, j0);
  }

  void scale(float factor) const {
    for (int64_t t = 0; t < count; ++t) value[t] *= factor;
  }

  // Largest first, equal values by ascending key; values that were scaled down to 0 lose their key.
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

  // The top values during a scan: `threshold`, which a new value must exceed, and `insert`, which replaces the
  // least value. A small top-k is kept in registers: inserts depend on one another, and a round trip through
  // memory would take most of their time.
  template <int N>
  struct InRegisters {
    const TopK& top;
    vf values[N];
    float least, threshold;

    explicit InRegisters(const TopK& top) : top(top) {
      for (int v = 0; v < N; ++v) values[v] = top.vector(v * W);
      threshold = least = least_of(values);
    }

    // Lets the scan skip most values of a new row: at least `count` of them are no smaller than the least of
    // `count` maxima over disjoint parts of the row.
    void raise_threshold(const float* row, int64_t n) {
      if (least != 0 || n < 2 * N * W) return;
      vf maxima[N] = {};
      for (int64_t t = 0; t + N * W <= n; t += N * W)
        for (int v = 0; v < N; ++v) maxima[v] = vmax(load(row + t + v * W), maxima[v]);
      threshold = just_below(N == 1 ? least_of_parts(maxima[0]) : least_of(maxima));
    }

    LIMELIGHT_INLINE void insert(float x, int64_t new_key) {
      int slot = 0;
      for (int v = N - 1; v >= 0; --v)
        if (const uint32_t equal = lane_bits(values[v] == least)) slot = v * W + __builtin_ctz(equal);
      for (int v = 0; v < N; ++v) values[v] = select(iota() + v * W == slot, splat(x), values[v]);
      top.key[slot] = new_key;
      least = least_of(values);
      threshold = least > threshold ? least : threshold;
    }

    void save() const {
      for (int v = 0; v < N; ++v)
        if (top.count > v * W) store_some(top.value + v * W, values[v], top.count - v * W);
    }

    // Merges maxima as long as at least `count` remain, and returns the least.
    template <int parts = W>
    float least_of_parts(vf maxima) const {
      if constexpr (parts > 1)
        if (parts / 2 >= top.count) return least_of_parts<parts / 2>(vmax(maxima, exchange<parts / 2>(maxima)));
      return hmin(maxima);
    }
  };

  struct InMemory {
    const TopK& top;
    float threshold;

    explicit InMemory(const TopK& top) : top(top) { update(); }
    void raise_threshold(const float*, int64_t) const {}
    void insert(float x, int64_t new_key) {
      int64_t slot = 0;
      while (top.value[slot] != threshold) ++slot;
      top.value[slot] = x, top.key[slot] = new_key;
      update();
    }
    void save() const {}

    void update() {
      vf least = splat(kInfinity);
      for (int64_t t = 0; t < top.count; t += W) least = vmin(top.vector(t), least);
      threshold = hmin(least);
    }
  };

  template <class Storage>
  static void offer_to(Storage storage, const float* row, int64_t n, int64_t j0) {
    storage.raise_threshold(row, n);
    int64_t t = 0;
    for (; t + kBatch * W <= n; t += kBatch * W) {
      vi above = load(row + t) > storage.threshold;
#pragma GCC unroll 16
      for (int u = 1; u < kBatch; ++u) above |= load(row + t + u * W) > storage.threshold;
      if (any_lane(above)) insert_above(row, t, kBatch, j0, storage);
    }
    if (t < n) insert_above(row, t, (n - t) / W, j0, storage);
    storage.save();
  }

  // Inserts the values above the threshold among `vectors` vectors from row[t]. Their comparisons are collected in
  // one word, because an unpredictable branch costs more than a comparison.
  template <class Storage>
  static void insert_above(const float* row, int64_t t, int64_t vectors, int64_t j0, Storage& storage) {
    uint64_t above = 0;
    for (int64_t u = 0; u < vectors; ++u)
      above |= static_cast<uint64_t>(lane_bits(load(row + t + u * W) > storage.threshold)) << u * W;
    for (; above; above &= above - 1) {
      const int64_t at = t + __builtin_ctzll(above);
      if (row[at] > storage.threshold) storage.insert(row[at], j0 + at);  // the threshold may have risen since
    }
  }

  // Values t … t + W, padded with +∞.
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
