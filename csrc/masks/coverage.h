// Queries of a mask by the kernels, besides `tile_cover` and `row_bits` of masks/rules.h.
#pragma once

#include "masks/rules.h"
#include "simd/vector.h"

namespace limelight::LIMELIGHT_ISA {

// A range that holds all keys that queries i0 … i1 can see.
inline Range key_range(const MaskNode& m, const Extent& x, int64_t i0, int64_t i1) {
  return linked_range<Axis::keys>(m, x, i0, i1);
}

// A range that holds all queries that can see any of keys j0 … j1.
inline Range query_range(const MaskNode& m, const Extent& x, int64_t j0, int64_t j1) {
  return linked_range<Axis::queries>(m, x, j0, j1);
}

LIMELIGHT_INLINE bool bit(const uint64_t* words, int64_t t) { return words[t / kWordKeys] >> (t % kWordKeys) & 1; }

// scores[t] = −inf where bit t is 0. `scores` is readable and writable up to the next multiple of W.
LIMELIGHT_INLINE void apply_mask(float* scores, const uint64_t* words, int64_t count) {
  const vi lane = splat_i(1) << iota();
  const vf masked = splat(kMasked);
  for (int64_t t = 0; t < count; t += W) {
    const uint64_t word = words[t / kWordKeys] >> (t % kWordKeys);
    const int32_t bits = static_cast<int32_t>(word & ((1ull << W) - 1));
    if (bits == (1 << W) - 1) continue;
    store(scores + t, select((splat_i(bits) & lane) != 0, load(scores + t), masked));
  }
}

}  // namespace limelight::LIMELIGHT_ISA
