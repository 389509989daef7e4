// How a forward pass is cut into jobs and tiles.
#pragma once

#include "attention/dropout.h"
#include "attention/forward_tile.h"
#include "attention/segments.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA {

constexpr double kForwardWorkPerThread = 4e5;  // multiply-adds that pay for waking another thread
constexpr int64_t kMaxQueryFloats = 72 << 10;  // floats of queries and outputs of a job, and
constexpr int64_t kMaxKeyFloats = 88 << 10;    // of keys and values: together they fit the second cache
constexpr int64_t kMaxKeptFloats = 1 << 20;  // of weights that a lens keeps, unless one tile of queries needs more

// Of queries, under a mask: more would see so many keys that a window did not fit.
constexpr int64_t kMaskedTiles = kBlockRows / kForwardQueries;
static_assert(kBlockRows == 8 * kForwardQueries, "halves of a block are whole tiles");

// The sizes of a call and how they are cut.
struct Plan {
  const Forward& call;
  const Problem& p;
  int64_t d, e, padded_e;
  int64_t heads_per_job, chunks;     // of a group of query heads
  int64_t rows_per_job;              // queries of one head
  int64_t pack_keys = kForwardKeys;  // keys that may be packed at once
  int threads;
  int64_t kept_per_tile = 0;  // floats of weights that a lens keeps
  Dropout dropout;

  // With `keeps` the weights of a job's rows are kept for a lens.
  explicit Plan(const Forward& c, bool keeps = false)
      : call(c), p(c.problem), d(p.d()), e(p.e()), padded_e(round_up(e, NR)), dropout(p) {
    const double work = double(p.b()) * double(p.h()) * double(p.i()) * double(p.j()) * double(d + e);
    threads = thread_limit();
    if (work < kForwardWorkPerThread * threads) threads = 1 + static_cast<int>(work / kForwardWorkPerThread);
    int64_t tiles = imax(1, kMaxQueryFloats / (d + padded_e) / kForwardQueries);
    if (p.mask) tiles = imin(tiles, kMaskedTiles);
    // Under a mask the keys of a job are often few, and no tile edges should fall into what a query sees.
    if (p.mask && !keeps) pack_keys = imax(kForwardKeys, round_up(kMaxKeyFloats / (d + padded_e), NR));
    if (keeps) {
      kept_per_tile =
          kForwardQueries * (kScoreStride + 2) * (p.j() / kForwardKeys + 1);  // + 2: a base for each half
      tiles = imax(1, imin(tiles, kMaxKeptFloats / kept_per_tile));
    }
    heads_per_job = imin(p.group(), tiles);
    chunks = (p.group() + heads_per_job - 1) / heads_per_job;
    rows_per_job = tiles / heads_per_job * kForwardQueries;
    if (keeps) return;
    // About four jobs a thread keep the threads evenly busy to the end.
    const int64_t all = p.b() * p.g() * chunks * p.i();
    const int64_t limit = rows_per_job, wanted = imin(limit, (all + 4 * threads - 1) / (4 * threads));
    if (p.mask) {  // whole parts of a block
      rows_per_job = kBlockRows;
      while (rows_per_job > limit || (2 * rows_per_job > 3 * wanted && rows_per_job > kForwardQueries))
        rows_per_job /= 2;
    } else {  // jobs of like size
      const int64_t jobs = (p.i() + wanted - 1) / imax(1, wanted);
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

// Queries i0 … i0 + rows of one head: packed, with the state of their online softmax.
struct QueryTile {
  int64_t h, i0, rows;
  const float* query;  // packed blocks
  float* out;          // rows × padded_e
  float* row_max;      // running maximum of the scores, log2 units
  float* row_sum;      // running sum of 2^(score − row_max)
};

// The keys that a job visits now.
struct KeyTile {
  int64_t j0, count;
  const float* key;    // packed panels
  const float* value;  // packed columns
  enum { unknown, finite, nonfinite } values;
};

}  // namespace limelight::LIMELIGHT_ISA
