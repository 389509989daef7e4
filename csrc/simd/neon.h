// NEON of AArch64: 32 registers of 4 floats.
#pragma once

#include <arm_neon.h>

#include <cstring>

#include "simd/types.h"

namespace limelight::LIMELIGHT_ISA {

inline constexpr int W = 4;
inline constexpr int MR = 12;

using vf = Vectors<W>::f32;
using vi = Vectors<W>::i32;
using vu = Vectors<W>::u32;
using vh = Vectors<W>::u16;

// Not vmaxq_f32, which returns NaN where either is NaN.
LIMELIGHT_INLINE vf vmax(vf a, vf b) { return a > b ? a : b; }

LIMELIGHT_INLINE bool any_lane(vi v) { return vmaxvq_u32((uint32x4_t)v) != 0; }

LIMELIGHT_INLINE uint32_t lane_bits(vi v) {
  const vu weight = {1, 2, 4, 8};
  return vaddvq_u32((uint32x4_t)((vu)v & weight));
}

LIMELIGHT_INLINE vf widen(vh bits, f16) { return (vf)vcvt_f32_f16((float16x4_t)bits); }

LIMELIGHT_INLINE vh narrow(vf x, f16) { return (vh)vcvt_f16_f32((float32x4_t)x); }

}  // namespace limelight::LIMELIGHT_ISA
