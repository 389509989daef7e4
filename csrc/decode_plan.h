// How a call of few queries is cut up: stretches of keys, blocks of a stretch, and what each part finds.
#pragma once

#include "dropout.h"
#include "mask.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA::decoding {

inline constexpr int64_t kSteps = 128;        // keys that a block takes from each place it reads at,
inline constexpr int64_t kKeys = 4 * kSteps;  // and in all
inline constexpr int64_t kLeastKeys = 512;    // fewer are not worth a job of their own
inline constexpr int64_t kJobs = 64;  // enough for many cores, and stretches long enough to be read at full speed
inline constexpr double kWorthThread = 3e4;  // elements read that pay for waking another thread

// A part is one (batch, key head) and one stretch of its keys.
struct Plan {
  const Forward& call;
  const Problem& p;
  const Dropout dropout;
  const int64_t rows;    // group · i: the queries that share a key head
  const int64_t d, e;    // channels, rounded up to whole vectors
  const int64_t splits;  // stretches of each key head
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
    if (reads < kWorthThread * threads) threads = 1 + static_cast<int>(reads / kWorthThread);
  }

  // The keys that any query of batch row b can see. No rule's range depends on the head.
  static Range visible(const Problem& p, int64_t b) {
    if (!p.mask) return {0, p.j()};
    const Range seen = key_range(p.mask.nodes[0], {b, 0, p.i(), p.j()}, 0, p.i());
    return {greater(0, seen.low), smaller(p.j(), seen.high)};
  }

  static int64_t splits_of(const Problem& p) {
    int64_t longest = 0;
    for (int64_t b = 0; b < p.b(); ++b) {
      const Range seen = visible(p, b);
      longest = greater(longest, seen.high - seen.low);
    }
    const int64_t wanted = divide_up(kJobs, p.b() * p.g());
    return greater(1, smaller(wanted, longest / kLeastKeys));
  }

  Range stretch(int64_t b, int64_t split) const {
    const Range seen = visible(p, b);
    const int64_t length = greater(0, seen.high - seen.low);
    const int64_t step = divide_up(length, splits);
    const int64_t low = seen.low + smaller(length, split * step);
    return {low, smaller(seen.low + length, low + step)};
  }

  int64_t part_floats() const { return rows * (e + 2); }
};

// What one part found, in scores of base 2: the largest, the sum of 2^(score − largest), and the values
// weighted by that.
struct Part {
  float *largest, *total, *sum;

  Part(const Plan& plan, float* memory)
      : largest(memory), total(memory + plan.rows), sum(memory + 2 * plan.rows) {}
};

// Row r of the stack is query r mod i of the group's head r div i.
struct Place {
  int64_t b, h, i;
};
inline Place place(const Plan& plan, int64_t b, int64_t g, int64_t r) {
  return {b, g * plan.p.group() + r / plan.p.i(), r % plan.p.i()};
}

// The keys of a block: `steps` from each of `Lanes` places that lie `apart` keys from one another. A core
// draws half as much again from memory when it reads four places side by side as when it reads one.
struct Block {
  int64_t j0, apart, steps;
};
inline constexpr int kLanes = kKeys / kSteps;

}  // namespace limelight::LIMELIGHT_ISA::decoding
