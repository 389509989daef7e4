// How a call of few queries is cut up: splits of the keys, blocks of a split, and the partial result of each.
#pragma once

#include "attention/dropout.h"
#include "masks/coverage.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA::decoding {

inline constexpr int64_t kLaneKeys = 128;                 // keys that a block takes from each place it reads at,
inline constexpr int64_t kDecodeKeys = 4 * kLaneKeys;     // and in all
inline constexpr int64_t kMinSplitKeys = 512;             // fewer are not worth a job of their own
inline constexpr int64_t kDecodeCacheBytes = 1200 << 10;  // keys of a head beyond it come from memory
inline constexpr int64_t kDecodeJobs =
    64;  // enough for many cores, and splits long enough to be read at full speed
inline constexpr double kDecodeReadsPerThread = 3e4;  // elements read that pay for waking another thread

// A part is one (batch, key head) and one split of its keys.
struct Plan {
  const Forward& call;
  const Problem& p;
  const Dropout dropout;
  const int64_t rows;    // group · i: the queries that share a key head
  const int64_t d, e;    // channels, rounded up to whole vectors
  const int64_t splits;  // of the keys of each head
  int threads;

  explicit Plan(const Forward& f)
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
    const Range seen = key_range(p.mask.nodes[0], {b, 0, p.i(), p.j()}, 0, p.i());
    return {imax(0, seen.low), imin(p.j(), seen.high)};
  }

  static int64_t splits_of(const Problem& p) {
    int64_t longest = 0;
    for (int64_t b = 0; b < p.b(); ++b) {
      const Range seen = visible(p, b);
      longest = imax(longest, seen.high - seen.low);
    }
    const int64_t wanted = ceil_div(kDecodeJobs, p.b() * p.g());
    return imax(1, imin(wanted, longest / kMinSplitKeys));
  }

  Range split_keys(int64_t b, int64_t split) const {
    const Range seen = visible(p, b);
    const int64_t length = imax(0, seen.high - seen.low);
    const int64_t step = ceil_div(length, splits);
    const int64_t low = seen.low + imin(length, split * step);
    return {low, imin(seen.low + length, low + step)};
  }

  int64_t part_floats() const { return rows * (e + 2); }
};

// The partial result of one split, in log2 units: the running maximum, the sum of 2^(score − row_max), and the
// values weighted by that.
struct Part {
  float *row_max, *row_sum, *out;

  Part(const Plan& plan, float* memory)
      : row_max(memory), row_sum(memory + plan.rows), out(memory + 2 * plan.rows) {}
};

// Row r of the stack is query r mod i of the group's head r div i.
struct RowIndex {
  int64_t b, h, i;
};
inline RowIndex row_index(const Plan& plan, int64_t b, int64_t g, int64_t r) {
  return {b, g * plan.p.group() + r / plan.p.i(), r % plan.p.i()};
}

// The keys of a block: `steps` from each of `Lanes` places that lie `apart` keys from one another. A core
// draws half as much again from memory when it reads four places side by side as when it reads one.
struct Block {
  int64_t j0, apart, steps;
};
inline constexpr int kLanes = kDecodeKeys / kLaneKeys;

}  // namespace limelight::LIMELIGHT_ISA::decoding
