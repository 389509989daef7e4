// Integer helpers and infinities for all kernels.
#pragma once

#include <cstdint>

#ifndef LIMELIGHT_ISA
#error "compile with -DLIMELIGHT_ISA=<name>: the namespace of this build"
#endif

#define LIMELIGHT_INLINE [[gnu::always_inline]] inline
#define LIMELIGHT_INLINE_LAMBDA __attribute__((always_inline))

namespace limelight::LIMELIGHT_ISA {

inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kMasked = -kInfinity;  // the score of a masked key

LIMELIGHT_INLINE constexpr int64_t imin(int64_t a, int64_t b) { return a < b ? a : b; }
LIMELIGHT_INLINE constexpr int64_t imax(int64_t a, int64_t b) { return a > b ? a : b; }
LIMELIGHT_INLINE constexpr int64_t ceil_div(int64_t x, int64_t by) { return (x + by - 1) / by; }
LIMELIGHT_INLINE constexpr int64_t round_up(int64_t x, int64_t to) { return ceil_div(x, to) * to; }

}  // namespace limelight::LIMELIGHT_ISA
