// The tiles of the forward pass.
#pragma once

#include "attention/gemm.h"
#include "masks/coverage.h"

namespace limelight::LIMELIGHT_ISA {

constexpr int64_t kForwardQueries = 48;  // queries of a tile: its scores stay in the first and second cache
constexpr int64_t kForwardKeys = 256;    // keys of a tile: packed once for all query tiles of a job
constexpr int64_t kForwardSpan = 320;    // keys that a tile of queries visits at once: a window of 256, whole
constexpr int64_t kScoreStride =
    kForwardSpan + NR;  // a row of scores; not a power of two, which would crowd the cache
constexpr int64_t kForwardHalf = kForwardQueries / 2;

// The last block of packed queries spills into the outputs behind it, which are zeroed afterwards.
static_assert(round_up(MR, W) - MR <= NR);
static_assert(kForwardHalf % MR == 0 && kForwardKeys % NR == 0 && kForwardSpan >= kForwardKeys &&
              kForwardSpan % kWordKeys == 0);

}  // namespace limelight::LIMELIGHT_ISA
