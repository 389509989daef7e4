// Whole numbers and infinities, in one spelling for all kernels.
#pragma once

#include <cstdint>

#ifndef LIMELIGHT_ISA
#error "compile with -DLIMELIGHT_ISA=<name>: the namespace of this build"
#endif

#define LIMELIGHT_INLINE [[gnu::always_inline]] inline
#define LIMELIGHT_INLINE_LAMBDA __attribute__((always_inline))

namespace limelight::LIMELIGHT_ISA {

inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kNever = -kInfinity;  // the score of what is not allowed

LIMELIGHT_INLINE constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
LIMELIGHT_INLINE constexpr int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }
LIMELIGHT_INLINE constexpr int64_t divide_up(int64_t x, int64_t by) { return (x + by - 1) / by; }
LIMELIGHT_INLINE constexpr int64_t round_up(int64_t x, int64_t to) { return divide_up(x, to) * to; }

}  // namespace limelight::LIMELIGHT_ISA
