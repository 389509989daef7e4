// Which weights dropout keeps: the arithmetic of ops/dropout.py, a pure function of the place.
#pragma once

#include "attention/problem.h"
#include "simd/vector.h"

namespace limelight::LIMELIGHT_ISA {

template <class U>
LIMELIGHT_INLINE U scramble(U x) {
  x = x + 0x9E3779B9u;
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

struct Dropout {
  uint32_t seed;       // both halves scrambled
  uint32_t threshold;  // words below it are dropped
  float grow;          // 1/(1 − dropout): what the kept weights are multiplied by

  explicit Dropout(const Problem& p)
      : seed(scramble(scramble(static_cast<uint32_t>(p.seed)) ^ static_cast<uint32_t>(p.seed >> 32))),
        grow(static_cast<float>(1 / (1 - p.dropout))) {
    const double words = p.dropout * 4294967296.0;
    threshold = words >= 4294967295.0 ? 0xFFFFFFFFu : static_cast<uint32_t>(words);
  }

  // `head` counts through batch and heads: b·H + h.
  uint32_t row(int64_t head, int64_t i) const {
    return scramble(scramble(seed ^ static_cast<uint32_t>(head)) ^ static_cast<uint32_t>(i));
  }

  // All ones in the lanes whose weight stays, for keys j, j + 1, ...
  LIMELIGHT_INLINE vi keep(uint32_t row, int64_t j) const {
    const vu key = splat_u(static_cast<uint32_t>(j)) + (vu)iota();
    return scramble(splat_u(row) ^ key) >= splat_u(threshold);
  }
};

}  // namespace limelight::LIMELIGHT_ISA
