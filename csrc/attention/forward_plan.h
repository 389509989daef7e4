// How a forward pass is divided into jobs and tiles.
#pragma once

#include "attention/dropout.h"
#include "attention/forward_tile.h"
#include "attention/segments.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA {

constexpr double kForwardWorkPerThread = 4e5;  // multiply-adds worth waking another thread for
constexpr int64_t kMaxQueryFloats = 72 << 10;  // queries and outputs of a job, and
constexpr int64_t kMaxKeyFloats = 88 << 10;    // its packed keys and values: together they fit the L2 cache
constexpr int64_t kMaxKeptFloats = 1 << 20;    // weights that a lens keeps, unless one query tile needs more

// The most query tiles of a job under a mask: more would see too many keys to pack those of a window at once.
constexpr int64_t kMaskedTiles = kBlockRows / kForwardQueries;
static_assert(kBlockRows == 8 * kForwardQueries, "halves of a block must be whole tiles");

struct ForwardPlan {
  const Forward& call;
  const Problem& p;
  int64_t d, e, padded_e;
  int64_t heads_per_job, chunks;     // a group of query heads is divided into `chunks`
  int64_t rows_per_job;              // queries of one head
  int64_t pack_keys = kForwardKeys;  // most keys packed at once
  int threads;
  int64_t kept_per_tile = 0;  // floats that a lens keeps per query tile
  Dropout dropout;

  // With `keep_weights` the weights of a job's rows are kept for a lens.
  explicit ForwardPlan(const Forward& c, bool keep_weights = false)
      : call(c), p(c.problem), d(p.d()), e(p.e()), padded_e(round_up(e, NR)), dropout(p) {
    const double work = double(p.b()) * double(p.h()) * double(p.i()) * double(p.j()) * double(d + e);
    threads = thread_limit();
    if (work < kForwardWorkPerThread * threads) threads = 1 + static_cast<int>(work / kForwardWorkPerThread);
    int64_t tiles = imax(1, kMaxQueryFloats / (d + padded_e) / kForwardQueries);
    if (p.mask) tiles = imin(tiles, kMaskedTiles);
    // Under a mask a job often sees few keys, and a tile edge among them would cost an extra visit.
    if (p.mask && !keep_weights) pack_keys = imax(kForwardKeys, round_up(kMaxKeyFloats / (d + padded_e), NR));
    if (keep_weights) {
      // + 2: the row maxima of each half
      kept_per_tile = kForwardQueries * (kScoreStride + 2) * (p.j() / kForwardKeys + 1);
      tiles = imax(1, imin(tiles, kMaxKeptFloats / kept_per_tile));
    }
    heads_per_job = imin(p.group(), tiles);
    chunks = (p.group() + heads_per_job - 1) / heads_per_job;
    rows_per_job = tiles / heads_per_job * kForwardQueries;
    if (keep_weights) return;
    // About four jobs per thread balance the load.
    const int64_t all_rows = p.b() * p.g() * chunks * p.i();
    const int64_t limit = rows_per_job, target = imin(limit, (all_rows + 4 * threads - 1) / (4 * threads));
    if (p.mask) {  // a block divided by a power of two
      rows_per_job = kBlockRows;
      while (rows_per_job > limit || (2 * rows_per_job > 3 * target && rows_per_job > kForwardQueries))
        rows_per_job /= 2;
    } else {  // jobs of equal size
      const int64_t jobs = (p.i() + target - 1) / imax(1, target);
      rows_per_job = imax(kForwardQueries, round_up((p.i() + jobs - 1) / imax(1, jobs), kForwardQueries));
    }
  }

  int64_t tiles_per_job() const { return heads_per_job * (rows_per_job / kForwardQueries); }
  int64_t tile_floats() const { return kForwardQueries * (d + padded_e + 2); }
  int64_t value_floats() const { return column_panel(pack_keys) / NR * padded_e; }
  int64_t scratch_floats() const {
    const int64_t shared = pack_keys * d + value_floats() + kForwardQueries * kScoreStride;
    return tiles_per_job() * (tile_floats() + kept_per_tile) + shared;
  }
};

// Queries i0 … i0 + rows of one head, packed, and the state of their online softmax.
struct QueryTile {
  int64_t h, i0, rows;
  const float* query;  // packed blocks
  float* out;          // rows × padded_e
  float* row_max;      // running maximum of the scores, log2 units
  float* row_sum;      // running sum of 2^(score − row_max)
};

// Keys j0 … j0 + count of one head, packed when a query tile first needs them.
struct KeyTile {
  int64_t j0, count;
  const float* key;    // packed panels, or null
  const float* value;  // packed columns, or null
  enum { unknown, finite, nonfinite } values;
};

}  // namespace limelight::LIMELIGHT_ISA
