// How a call of the forward sweep is cut into jobs and tiles.
#pragma once

#include "dropout.h"
#include "forward_tile.h"
#include "segments.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA {

constexpr double kWorthThread = 4e5;       // multiply-adds that pay for waking another thread
constexpr int64_t kMostRows = 72 << 10;    // floats of queries and outputs of a job, and
constexpr int64_t kMostPacked = 88 << 10;  // of keys and values: together they fit the second cache
constexpr int64_t kMostKept = 4 << 20;     // of weights that a lens keeps, unless one tile of queries needs more

// Of queries, under a mask: more would see so many keys that a window did not fit.
constexpr int64_t kMaskedTiles = kBlockRows / kTileRows;
static_assert(kBlockRows == 8 * kTileRows, "halves of a block are whole tiles");

// The sizes of a call and how they are cut.
struct Plan {
  const Forward& call;
  const Problem& p;
  int64_t d, e, padded_e;
  int64_t heads_a_job, chunks;    // of a group of query heads
  int64_t rows_a_job;             // queries of one head
  int64_t pack_keys = kTileKeys;  // keys that may be packed at once
  int threads;
  int64_t kept_a_tile = 0;  // floats
  Dropout dropout;

  // With `keeps` the weights of a job's rows are kept for a lens.
  explicit Plan(const Forward& c, bool keeps = false)
      : call(c), p(c.problem), d(p.d()), e(p.e()), padded_e(round_up(e, NR)), dropout(p) {
    const double work = double(p.b()) * double(p.h()) * double(p.i()) * double(p.j()) * double(d + e);
    threads = thread_limit();
    if (work < kWorthThread * threads) threads = 1 + static_cast<int>(work / kWorthThread);
    int64_t tiles = greater(1, kMostRows / (d + padded_e) / kTileRows);
    if (p.mask) tiles = smaller(tiles, kMaskedTiles);
    // Under a mask the keys of a job are often few, and no tile edges should fall into what a query sees.
    if (p.mask && !keeps) pack_keys = greater(kTileKeys, round_up(kMostPacked / (d + padded_e), NR));
    if (keeps) {
      kept_a_tile = kTileRows * (kScoreStride + 2) * (p.j() / kTileKeys + 1);
      tiles = greater(1, smaller(tiles, kMostKept / kept_a_tile));
    }
    heads_a_job = smaller(p.group(), tiles);
    chunks = (p.group() + heads_a_job - 1) / heads_a_job;
    rows_a_job = tiles / heads_a_job * kTileRows;
    if (keeps) return;
    // About four jobs a thread keep the threads evenly busy to the end.
    const int64_t all = p.b() * p.g() * chunks * p.i();
    const int64_t most = rows_a_job, wanted = smaller(most, (all + 4 * threads - 1) / (4 * threads));
    if (p.mask) {  // whole parts of a block
      rows_a_job = kBlockRows;
      while (rows_a_job > most || (2 * rows_a_job > 3 * wanted && rows_a_job > kTileRows)) rows_a_job /= 2;
    } else {  // jobs of like size
      const int64_t jobs = (p.i() + wanted - 1) / greater(1, wanted);
      rows_a_job = greater(kTileRows, round_up((p.i() + jobs - 1) / greater(1, jobs), kTileRows));
    }
  }

  int64_t tiles_a_job() const { return heads_a_job * (rows_a_job / kTileRows); }
  int64_t tile_floats() const { return kTileRows * (d + padded_e + 2); }
  size_t floats() const {
    const int64_t shared = pack_keys * d + column_panel(pack_keys) / NR * padded_e + kTileRows * kScoreStride;
    return static_cast<size_t>(tiles_a_job() * (tile_floats() + kept_a_tile) + shared);
  }
};

// Queries i0 … i0 + rows of one head: packed, with what they have gathered so far.
struct QueryTile {
  int64_t h, i0, rows;
  const float* query;  // packed blocks
  float* out;          // rows × padded_e
  float* top;          // running maximum of the scores, log2 units
  float* sum;          // running sum of 2^(score − top)
};

// The keys that a job looks at now.
struct KeyTile {
  int64_t j0, count;
  const float* key;    // packed panels
  const float* value;  // packed columns
  enum { unknown, finite, wild } values;
};

}  // namespace limelight::LIMELIGHT_ISA
