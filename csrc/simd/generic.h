// Any CPU: the compiler maps these vectors to the registers it has. With -DLIMELIGHT_LANES=16 they have the shape
// of AVX-512 and run everywhere.
#pragma once

#include <cstring>

#include "simd/types.h"

#ifndef LIMELIGHT_LANES
#define LIMELIGHT_LANES 4
#endif

namespace limelight::LIMELIGHT_ISA {

inline constexpr int W = LIMELIGHT_LANES;
inline constexpr int MR = W == 16 ? 12 : 6;

using vf = Vectors<W>::f32;
using vi = Vectors<W>::i32;
using vu = Vectors<W>::u32;
using vh = Vectors<W>::u16;

LIMELIGHT_INLINE vf vmax(vf a, vf b) { return a > b ? a : b; }

LIMELIGHT_INLINE bool any_lane(vi v) {
  uint64_t words[W / 2], any = 0;
  std::memcpy(words, &v, sizeof v);
  for (const uint64_t word : words) any |= word;
  return any != 0;
}

LIMELIGHT_INLINE uint32_t lane_bits(vi v) {
  uint32_t all = 0;
  for (int t = 0; t < W; ++t) all |= (v[t] ? 1u : 0u) << t;
  return all;
}

LIMELIGHT_INLINE vf widen(vh bits, f16) {
  const vu h = __builtin_convertvector(bits, vu);
  const vu body = (h & 0x7fffu) << 13;
  const vf scaled = (vf)body * 0x1p112f;  // exact, subnormals too
  const vu special = body | 0x7f800000u;
  const vu size = body >= 0x0f800000u ? special : (vu)scaled;
  return (vf)(size | ((h & 0x8000u) << 16));
}

LIMELIGHT_INLINE vh narrow(vf x, f16) {
  const vu u = (vu)x, sign = (u >> 16) & 0x8000u, body = u & 0x7fffffffu;
  // Subnormal halves: adding 0.5 aligns the last bit of the half with that of the float, so that the addition
  // rounds to nearest even.
  const vu normal = (body - 0x38000000u + 0xfffu + ((body >> 13) & 1u)) >> 13;
  const vu tiny = (vu)((vf)body + 0.5f) - 0x3f000000u;
  const vu infinite = 0x7c00u - vu{}, nan = 0x7e00u - vu{};
  vu half = body < 0x38800000u ? tiny : normal;
  half = body >= 0x477ff000u ? infinite : half;
  half = body > 0x7f800000u ? nan : half;
  return __builtin_convertvector(half | sign, vh);
}

}  // namespace limelight::LIMELIGHT_ISA
