// The tiles of the forward sweep.
#pragma once

#include "tile.h"

namespace limelight::LIMELIGHT_ISA {

constexpr int64_t kTileRows = 48;    // queries of a tile: its scores stay in the first and second cache
constexpr int64_t kTileKeys = 256;   // keys of a tile: packed once for all query tiles of a job
constexpr int64_t kVisitKeys = 320;  // keys that a tile of queries looks at in one go: a window of 256, whole
constexpr int64_t kScoreStride =
    kVisitKeys + NR;  // a row of scores; not a power of two, which would crowd the cache
constexpr int64_t kHalfTile = kTileRows / 2;

static_assert(kHalfTile % MR == 0 && kTileKeys % NR == 0 && kVisitKeys >= kTileKeys &&
              kVisitKeys % kWordKeys == 0);

}  // namespace limelight::LIMELIGHT_ISA
