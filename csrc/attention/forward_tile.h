// Tile sizes of the forward pass.
#pragma once

#include "attention/gemm.h"
#include "masks/coverage.h"

namespace limelight::LIMELIGHT_ISA {

constexpr int64_t kForwardQueries = 48;  // queries per tile: its scores stay in the L1 and L2 caches
constexpr int64_t kForwardKeys = 256;    // keys per tile: packed once for all query tiles of a job
constexpr int64_t kForwardSpan = 320;    // most keys that a query tile visits at once: holds a window of 256
constexpr int64_t kScoreStride =
    kForwardSpan + NR;  // floats per row of scores; a power of two would alias in the cache
constexpr int64_t kForwardHalf = kForwardQueries / 2;

// The last block of packed queries runs over into the outputs after it, which are zeroed later.
static_assert(round_up(MR, W) - MR <= NR);
static_assert(kForwardHalf % MR == 0 && kForwardKeys % NR == 0 && kForwardSpan >= kForwardKeys &&
              kForwardSpan % kWordKeys == 0);

}  // namespace limelight::LIMELIGHT_ISA
