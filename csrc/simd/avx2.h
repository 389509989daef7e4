// AVX2 with FMA and F16C: 16 registers of 8 floats; 6 × 2 accumulators leave room for the operands.
#pragma once

#include <immintrin.h>

#include "simd/types.h"

namespace limelight::LIMELIGHT_ISA {

inline constexpr int W = 8;
inline constexpr int MR = 6;

using vf = Vectors<W>::f32;
using vi = Vectors<W>::i32;
using vu = Vectors<W>::u32;
using vh = Vectors<W>::u16;

// GCC compiles a > b ? a : b to two instructions.
LIMELIGHT_INLINE vf vmax(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }

LIMELIGHT_INLINE bool any_lane(vi v) { return !_mm256_testz_si256((__m256i)v, (__m256i)v); }

LIMELIGHT_INLINE uint32_t lane_bits(vi v) { return static_cast<uint32_t>(_mm256_movemask_ps((__m256)v)); }

LIMELIGHT_INLINE vf widen(vh bits, f16) { return (vf)_mm256_cvtph_ps((__m128i)bits); }

LIMELIGHT_INLINE vh narrow(vf x, f16) { return (vh)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT); }

}  // namespace limelight::LIMELIGHT_ISA
