// The interface of a mask rule: reading it from a program, the range it can link, the cover of a tile, the bits of
// a row.
//
// A rule allows none, some or all of a tile; only "some" costs work per element. A rule inside Documents works in
// the coordinates of one document, hence the Extent that every function takes.
#pragma once

#include "masks/reader.h"
#include "simd/scalar.h"

namespace limelight::LIMELIGHT_ISA {

enum class Cover { none, some, all };

LIMELIGHT_INLINE Cover cover_of(bool any, bool every) {
  return every ? Cover::all : any ? Cover::some : Cover::none;
}

struct Range {
  int64_t low, high;  // low ≤ x < high; empty when high ≤ low
};

struct Tile {
  int64_t i0, i1, j0, j1;  // queries i0 ≤ i < i1, keys j0 ≤ j < j1; neither is empty
};

enum class Axis { queries, keys };

inline constexpr int64_t kWordKeys = 64;
inline constexpr int64_t kMaxWords = 32;  // the most that row_bits writes: 2048 keys

// Sets bits low ≤ t < high of the words and clears all others.
inline void fill_bits(uint64_t* words, int64_t count, int64_t low, int64_t high) {
  low = imax(low, 0), high = imin(high, count);
  for (int64_t w = 0; w * kWordKeys < count; ++w) {
    const int64_t a = imax(low - w * kWordKeys, 0), z = imin(high - w * kWordKeys, kWordKeys);
    words[w] = a >= z ? 0 : (~0ull << a) & (~0ull >> (kWordKeys - z));
  }
}

// These three call `range`, `cover` and `bits` of a node's rule. They are declared here so that a rule can call
// those of its children; masks/rules.h defines them.

// A range on axis `To` that holds every position linked to any of begin ≤ t < end on the other axis. It may hold
// others too.
template <Axis To>
inline Range linked_range(const MaskNode& m, const Extent& x, int64_t begin, int64_t end);

// How much of a tile the rule allows.
inline Cover tile_cover(const MaskNode& m, const Extent& x, const Tile& t);

// Bit t of the words says whether query i may see key j0 + t, for t < count ≤ kMaxWords·64; later bits are 0.
inline void row_bits(const MaskNode& m, const Extent& x, int64_t i, int64_t j0, int64_t count, uint64_t* words);

// The base of every rule. A rule defines `read`, which fills its node or refuses arguments that do not fit the
// call; `cover` and `bits`; and `range` if it can narrow down the keys or the queries.
struct AnyRule {
  template <Axis To>
  static Range range(const MaskNode&, const Extent& x, int64_t, int64_t) {
    return {0, To == Axis::keys ? x.j : x.i};
  }
};

}  // namespace limelight::LIMELIGHT_ISA
