// The vectors of all kernels, on top of the header of an instruction set.
//
// A build is compiled with -DLIMELIGHT_ISA=<name> -DLIMELIGHT_SIMD="simd/<name>.h". That header defines
//
//     W                       floats per vector
//     MR                      rows of a register block: MR × 2 accumulators and the operands fit the registers
//     vf vi vu vh             vectors of W float, int32, uint32, uint16
//     vmax(a, b)              the larger one; b where either is NaN
//     any_lane(v)             whether any lane is nonzero
//     lane_bits(v)            one bit per lane; lanes are 0 or −1
//     widen(bits, f16{})      float16 to float32; narrow(x, f16{}) back, to nearest even
//
// Every build compiles this header in a namespace of its own, so that the linker cannot replace an inline function
// of one build by that of another.
#pragma once

#include <cstring>
#include <utility>

#include "view.h"
#include LIMELIGHT_SIMD

namespace limelight::LIMELIGHT_ISA {

inline constexpr int NR = 2 * W;  // columns of a register block

inline constexpr int64_t kLineBytes = 64;  // of a cache line
inline constexpr int64_t kAhead = 8;       // rows to prefetch ahead of the current one

LIMELIGHT_INLINE vf splat(float x) { return x - vf{}; }
LIMELIGHT_INLINE vi splat_i(int32_t x) { return x - vi{}; }
LIMELIGHT_INLINE vu splat_u(uint32_t x) { return x - vu{}; }

template <class V, class T>
LIMELIGHT_INLINE V load_bits(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
LIMELIGHT_INLINE vf load(const float* p) { return load_bits<vf>(p); }
LIMELIGHT_INLINE void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }

// 0, 1, 2, ...
LIMELIGHT_INLINE vi iota() {
  vi v{};
  for (int t = 0; t < W; ++t) v[t] = t;
  return v;
}

LIMELIGHT_INLINE vf select(vi condition, vf yes, vf no) { return condition ? yes : no; }
LIMELIGHT_INLINE vf vabs(vf x) { return (vf)((vi)x & 0x7fffffff); }

// Exchanges lanes t and t ^ step.
template <int step>
LIMELIGHT_INLINE vf exchange(vf v) {
#ifdef __clang__
  return [&]<size_t... lane>(std::index_sequence<lane...>) {
    return __builtin_shufflevector(v, v, (lane ^ step)...);
  }(std::make_index_sequence<W>());
#else
  return __builtin_shuffle(v, iota() ^ step);
#endif
}

// All lanes combined, in a tree.
template <int step = W / 2, class Combine>
LIMELIGHT_INLINE float combined(vf v, const Combine& combine) {
  if constexpr (step == 0)
    return v[0];
  else
    return combined<step / 2>(combine(v, exchange<step>(v)), combine);
}
LIMELIGHT_INLINE float hsum(vf v) {
  return combined(v, [](vf a, vf b) { return a + b; });
}
LIMELIGHT_INLINE float hmax(vf v) {
  return combined(v, [](vf a, vf b) { return vmax(a, b); });
}

// 2^x to a relative error of 1.7e-7 for x ≤ 127, on N vectors at once so that their dependency chains overlap.
// Exactly 0 below −127 (so −inf gives 0); NaN stays NaN.
template <int N>
LIMELIGHT_INLINE void exp2(vf (&x)[N]) {
#define LIMELIGHT_EACH _Pragma("GCC unroll 8") for (int n = 0; n < N; ++n)
  const vf magic = splat(12582912.0f + 127.0f);  // 1.5·2^23: rounds, and leaves n + 127 in the low bits
  vf t[N], p[N];
  LIMELIGHT_EACH x[n] = vmax(splat(-127.0f), x[n]);  // this order keeps NaN
  LIMELIGHT_EACH t[n] = x[n] + magic;
  LIMELIGHT_EACH x[n] -= t[n] - magic;
  // The minimax polynomial of 2^f on [−1/2, 1/2] with p(0) = 1; relative error 9e-8 before rounding.
  LIMELIGHT_EACH p[n] = splat(1.326472731307149e-3f) * x[n] + splat(9.671512991189957e-3f);
  LIMELIGHT_EACH p[n] = p[n] * x[n] + splat(5.550733581185341e-2f);
  LIMELIGHT_EACH p[n] = p[n] * x[n] + splat(2.4022242426872253e-1f);
  LIMELIGHT_EACH p[n] = p[n] * x[n] + splat(6.931470036506653e-1f);
  LIMELIGHT_EACH p[n] = p[n] * x[n] + splat(1.0f);
  LIMELIGHT_EACH x[n] = p[n] * (vf)((vu)t[n] << 23);  // 2^n; n = −127 gives 0
#undef LIMELIGHT_EACH
}
LIMELIGHT_INLINE vf exp2(vf x) {
  vf single[1] = {x};
  exp2(single);
  return single[0];
}

// tanh to float accuracy, by expm1(2|x|)/(expm1(2|x|) + 2), which loses nothing near 0.
LIMELIGHT_INLINE vf tanh(vf x) {
  vf y = vabs(x) * splat(2.885390081777927f);  // 2·log2(e)
  const vf ceiling = splat(32.0f);
  y = y > ceiling ? ceiling : y;
  const vf magic = splat(12582912.0f + 127.0f);
  const vf t = y + magic;
  const vf f = y - (t - magic);
  const vf power = (vf)((vu)t << 23);
  vf p = splat(1.5353361e-4f);
  p = p * f + splat(1.3398874e-3f);
  p = p * f + splat(9.6184373e-3f);
  p = p * f + splat(5.5503324e-2f);
  p = p * f + splat(2.4022648e-1f);
  p = p * f + splat(6.9314720e-1f);
  const vf expm1 = p * f * power + (power - 1.0f);
  const vf result = expm1 / (expm1 + 2.0f);
  return (vf)((vi)result | ((vi)x & (int32_t)0x80000000));
}

// --- half precision in memory, float32 in registers -------------------------------------------------

LIMELIGHT_INLINE vf widen(vh bits, bf16) { return (vf)(__builtin_convertvector(bits, vu) << 16); }

LIMELIGHT_INLINE vh narrow(vf x, bf16) {
  const vu u = (vu)x;
  const vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const vu quiet = (u >> 16) | 0x40u;
  return __builtin_convertvector(x == x ? rounded : quiet, vh);
}

LIMELIGHT_INLINE vf load(const bf16* p) { return widen(load_bits<vh>(p), bf16{}); }
LIMELIGHT_INLINE vf load(const f16* p) { return widen(load_bits<vh>(p), f16{}); }
LIMELIGHT_INLINE void store(bf16* p, vf v) {
  const vh bits = narrow(v, bf16{});
  std::memcpy(p, &bits, sizeof bits);
}
LIMELIGHT_INLINE void store(f16* p, vf v) {
  const vh bits = narrow(v, f16{});
  std::memcpy(p, &bits, sizeof bits);
}

// The first `count` < W elements; the other lanes are 0.
template <class T>
LIMELIGHT_INLINE vf load_partial(const T* p, int64_t count) {
  T lane[W] = {};
  std::memcpy(lane, p, static_cast<size_t>(count) * sizeof(T));
  return load(lane);
}
template <class T>
LIMELIGHT_INLINE void store_partial(T* p, vf v, int64_t count) {
  T lane[W];
  store(lane, v);
  std::memcpy(p, lane, static_cast<size_t>(count) * sizeof(T));
}

// The first W elements, or as many as there are.
template <class T>
LIMELIGHT_INLINE vf load_some(const T* p, int64_t left) {
  return left < W ? load_partial(p, left) : load(p);
}
template <class T>
LIMELIGHT_INLINE void store_some(T* p, vf v, int64_t left) {
  left < W ? store_partial(p, v, left) : store(p, v);
}

// Calls body with a null pointer of type T*, where T is the element type of `dtype`.
template <class Body>
LIMELIGHT_INLINE void dispatch_dtype(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::f32: return body(static_cast<float*>(nullptr));
    case Dtype::bf16: return body(static_cast<bf16*>(nullptr));
    case Dtype::f16: return body(static_cast<f16*>(nullptr));
  }
}

// For rows far apart in memory, which are more streams than the hardware prefetcher tracks.
template <class T>
LIMELIGHT_INLINE void prefetch_row(const T* from, int64_t count) {
  for (int64_t t = 0; t < count; t += kLineBytes / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(from + t);
}

// into[0 … count) = factor · from, then zeros up to `padded`.
template <class T>
LIMELIGHT_INLINE void load_row(const T* from, float* into, int64_t count, int64_t padded, float factor = 1) {
  int64_t t = 0;
  for (; t + W <= count; t += W) store(into + t, load(from + t) * factor);
  if (t < count) {
    store_some(into + t, load_partial(from + t, count - t) * factor, padded - t);
    t += imin(W, padded - t);
  }
  for (; t < padded; ++t) into[t] = 0;
}

// into[0 … count) = factor · from
template <class T>
LIMELIGHT_INLINE void store_row(const float* from, T* into, int64_t count, float factor = 1) {
  int64_t t = 0;
  for (; t + W <= count; t += W) store(into + t, load(from + t) * factor);
  if (t < count) store_partial(into + t, load_partial(from + t, count - t) * factor, count - t);
}

// Whether no element of a row is infinite or NaN.
template <class T>
LIMELIGHT_INLINE bool is_finite_row(const T* from, int64_t count) {
  vf sum{};  // stays 0: only infinity and NaN times 0 are not 0
  for (int64_t t = 0; t < count; t += W) sum += load_some(from + t, count - t) * 0.0f;
  return hsum(sum) == 0;
}

// x where it is finite, else 0.
LIMELIGHT_INLINE vf finite_or_zero(vf x) { return select(x - x == vf{}, x, vf{}); }

// --- transposing W × W in registers ------------------------------------------------------------------

// How a vector is combined from the lanes of a (0 … W−1) and b (W … 2W−1). The first four shuffle within groups of
// four lanes, which is cheapest.
enum class Mix { low, high, low_pairs, high_pairs, low_fours, high_fours, low_eights, high_eights };

constexpr int mixed_lane(Mix mix, int c) {
  const int group = c / 4 * 4, lane = c % 4;
  switch (mix) {
    case Mix::low: return group + lane / 2 + c % 2 * W;       // a0 b0 a1 b1
    case Mix::high: return group + lane / 2 + c % 2 * W + 2;  // a2 b2 a3 b3
    case Mix::low_pairs: return lane < 2 ? c : W + c - 2;     // a0 a1 b0 b1
    case Mix::high_pairs: return lane < 2 ? c + 2 : W + c;    // a2 a3 b2 b3
    case Mix::low_fours: return c & 4 ? W + c - 4 : c;
    case Mix::high_fours: return c & 4 ? W + c : c + 4;
    case Mix::low_eights: return c & 8 ? W + c - 8 : c;
    case Mix::high_eights: return c & 8 ? W + c : c + 8;
  }
  return 0;
}

template <Mix M, size_t... C>
LIMELIGHT_INLINE vf mix_lanes(vf a, vf b, std::index_sequence<C...>) {
  return __builtin_shufflevector(a, b, mixed_lane(M, C)...);
}
template <Mix M>
LIMELIGHT_INLINE vf mix(vf a, vf b) {
  return mix_lanes<M>(a, b, std::make_index_sequence<W>{});
}

// Swaps the off-diagonal blocks of S × S.
template <int S, Mix Low, Mix High>
LIMELIGHT_INLINE void transpose_blocks(vf (&row)[W]) {
#pragma GCC unroll 16
  for (int r = 0; r < W; ++r) {
    if (r & S) continue;
    const vf a = row[r], b = row[r + S];
    row[r] = mix<Low>(a, b);
    row[r + S] = mix<High>(a, b);
  }
}

LIMELIGHT_INLINE void transpose(vf (&row)[W]) {
#pragma GCC unroll 16
  for (int r = 0; r < W; r += 4) {
    const vf a = mix<Mix::low>(row[r], row[r + 1]), b = mix<Mix::high>(row[r], row[r + 1]);
    const vf c = mix<Mix::low>(row[r + 2], row[r + 3]), d = mix<Mix::high>(row[r + 2], row[r + 3]);
    row[r] = mix<Mix::low_pairs>(a, c);
    row[r + 1] = mix<Mix::high_pairs>(a, c);
    row[r + 2] = mix<Mix::low_pairs>(b, d);
    row[r + 3] = mix<Mix::high_pairs>(b, d);
  }
  if constexpr (W >= 8) transpose_blocks<4, Mix::low_fours, Mix::high_fours>(row);
  if constexpr (W >= 16) transpose_blocks<8, Mix::low_eights, Mix::high_eights>(row);
}

// Lane r is the sum of row r.
LIMELIGHT_INLINE vf hsum_rows(vf (&row)[W]) {
  transpose(row);
  vf total = row[0];
  for (int r = 1; r < W; ++r) total += row[r];
  return total;
}

}  // namespace limelight::LIMELIGHT_ISA
