// AVX-512 F, BW, VL, DQ: 32 registers of 16 floats. The zero-masked intrinsics avoid false -Wmaybe-uninitialized
// warnings of GCC 12 about its own header.
#pragma once

#include <immintrin.h>

#include "simd/types.h"

namespace limelight::LIMELIGHT_ISA {

inline constexpr int W = 16;
inline constexpr int MR = 12;

using vf = Vectors<W>::f32;
using vi = Vectors<W>::i32;
using vu = Vectors<W>::u32;
using vh = Vectors<W>::u16;

LIMELIGHT_INLINE vf vmax(vf a, vf b) { return (vf)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b); }

LIMELIGHT_INLINE bool any_lane(vi v) { return _mm512_test_epi32_mask((__m512i)v, (__m512i)v) != 0; }

LIMELIGHT_INLINE uint32_t lane_bits(vi v) { return _mm512_test_epi32_mask((__m512i)v, (__m512i)v); }

LIMELIGHT_INLINE vf widen(vh bits, f16) { return (vf)_mm512_maskz_cvtph_ps(0xffff, (__m256i)bits); }

LIMELIGHT_INLINE vh narrow(vf x, f16) {
  return (vh)_mm512_maskz_cvtps_ph(0xffff, (__m512)x, _MM_FROUND_TO_NEAREST_INT);
}

}  // namespace limelight::LIMELIGHT_ISA
