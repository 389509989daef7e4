// How a call of few queries is divided: splits of the keys, blocks of a split, and the partial result of each
// split.
#pragma once

#include "attention/dropout.h"
#include "masks/coverage.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA::decoding {

// A core reads half as much again from memory when it reads four streams side by side instead of one.
inline constexpr int kStreams = 4;
inline constexpr int64_t kStreamKeys = 128;                     // keys of a block from each stream
inline constexpr int64_t kDecodeKeys = kStreams * kStreamKeys;  // keys of a block
inline constexpr int64_t kMinSplitKeys = 512;                   // fewer are not worth a job of their own
inline constexpr int64_t kDecodeCacheBytes = 1200 << 10;        // larger keys of a head are read from memory
inline constexpr int64_t kDecodeJobs = 64;  // enough for many cores, and splits are long enough for full bandwidth
inline constexpr double kDecodeReadsPerThread = 3e4;  // elements read that are worth waking another thread for

struct DecodePlan {
  const Forward& call;
  const Problem& p;
  const Dropout dropout;
  const int64_t rows;    // group · i: the queries that share a key head
  const int64_t d, e;    // channels, rounded up to whole vectors
  const int64_t splits;  // number of splits of each head's keys
  int threads;

  explicit DecodePlan(const Forward& f)
      : call(f),
        p(f.problem),
        dropout(f.problem),
        rows(p.group() * p.i()),
        d(round_up(p.d(), W)),
        e(round_up(p.e(), W)),
        splits(splits_of(f.problem)),
        threads(thread_limit()) {
    const double reads = static_cast<double>(p.b() * p.g()) * static_cast<double>(p.j() * (d + e));
    if (reads < kDecodeReadsPerThread * threads) threads = 1 + static_cast<int>(reads / kDecodeReadsPerThread);
  }

  // The keys that any query of batch row b can see. No rule's range depends on the head.
  static Range visible(const Problem& p, int64_t b) {
    if (!p.mask) return {0, p.j()};
    const Range keys = key_range(p.mask.nodes[0], {b, 0, p.i(), p.j()}, 0, p.i());
    return {imax(0, keys.low), imin(p.j(), keys.high)};
  }

  static int64_t splits_of(const Problem& p) {
    int64_t longest = 0;
    for (int64_t b = 0; b < p.b(); ++b) {
      const Range keys = visible(p, b);
      longest = imax(longest, keys.high - keys.low);
    }
    const int64_t target = ceil_div(kDecodeJobs, p.b() * p.g());
    return imax(1, imin(target, longest / kMinSplitKeys));
  }

  Range split_keys(int64_t b, int64_t split) const {
    const Range keys = visible(p, b);
    const int64_t length = imax(0, keys.high - keys.low);
    const int64_t step = ceil_div(length, splits);
    const int64_t low = keys.low + imin(length, split * step);
    return {low, imin(keys.low + length, low + step)};
  }

  int64_t partial_floats() const { return rows * (e + 2); }
};

// The partial result of a key head's rows over one split of its keys: the maximum score (in log2 units), the sum
// of 2^(score − row_max), and the sum of values weighted by it.
struct PartialResult {
  float *row_max, *row_sum, *out;

  PartialResult(const DecodePlan& plan, float* memory)
      : row_max(memory), row_sum(memory + plan.rows), out(memory + 2 * plan.rows) {}
};

// Row r of a key head is query r mod i of the group's head r div i.
struct RowIndex {
  int64_t b, h, i;
};
inline RowIndex row_index(const DecodePlan& plan, int64_t b, int64_t g, int64_t r) {
  return {b, g * plan.p.group() + r / plan.p.i(), r % plan.p.i()};
}

// The keys of a block: `steps` from each stream. Stream x begins at key j0 + x·stream_stride.
struct Block {
  int64_t j0, stream_stride, steps;
};

}  // namespace limelight::LIMELIGHT_ISA::decoding
