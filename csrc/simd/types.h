// Vectors of a fixed number of lanes, by the compiler's vector extensions.
#pragma once

#include "simd/scalar.h"

namespace limelight::LIMELIGHT_ISA {

template <int Lanes>
struct Vectors {
  typedef float f32 __attribute__((vector_size(Lanes * 4)));
  typedef int32_t i32 __attribute__((vector_size(Lanes * 4)));
  typedef uint32_t u32 __attribute__((vector_size(Lanes * 4)));
  typedef uint16_t u16 __attribute__((vector_size(Lanes * 2)));
};

// Half-precision numbers as stored in memory.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

}  // namespace limelight::LIMELIGHT_ISA
