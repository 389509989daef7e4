// Which weights dropout keeps: a pure function of seed, batch, head, query and key, as in ops/dropout.py.
#pragma once

#include "attention/problem.h"
#include "simd/vector.h"

namespace limelight::LIMELIGHT_ISA {

// A bijection of 32-bit words that looks random.
template <class U>
LIMELIGHT_INLINE U mix_bits(U x) {
  x = x + 0x9E3779B9u;
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

struct Dropout {
  uint32_t seed;       // both halves mixed
  uint32_t threshold;  // words below it are dropped
  float scale;         // of the kept weights: 1/(1 − dropout)

  explicit Dropout(const Problem& p)
      : seed(mix_bits(mix_bits(static_cast<uint32_t>(p.seed)) ^ static_cast<uint32_t>(p.seed >> 32))),
        scale(static_cast<float>(1 / (1 - p.dropout))) {
    const double bound = p.dropout * 4294967296.0;
    threshold = bound >= 4294967295.0 ? 0xFFFFFFFFu : static_cast<uint32_t>(bound);
  }

  // `head` is the index over batch and heads, b·H + h.
  uint32_t row_seed(int64_t head, int64_t i) const {
    return mix_bits(mix_bits(seed ^ static_cast<uint32_t>(head)) ^ static_cast<uint32_t>(i));
  }

  // All ones in the lanes whose weight is kept, for keys j, j + 1, ...
  LIMELIGHT_INLINE vi keep(uint32_t row_seed, int64_t j) const {
    const vu key = splat_u(static_cast<uint32_t>(j)) + (vu)iota();
    return mix_bits(splat_u(row_seed) ^ key) >= splat_u(threshold);
  }
};

}  // namespace limelight::LIMELIGHT_ISA
