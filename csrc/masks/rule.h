// What a rule is asked: how it is read, what it can link, what it leaves of a tile, the bits of a row.
//
// A tile is none, all, or some; only tiles of the last kind cost work for each element. A rule under
// Documents works in the coordinates of its document, hence the Extent that every function takes.
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
inline constexpr int64_t kMaxWords = 32;  // widest tile of row_bits: 2048 keys

// Bits low ≤ t < high of the words, all others 0.
inline void fill_bits(uint64_t* words, int64_t count, int64_t low, int64_t high) {
  low = imax(low, 0), high = imin(high, count);
  for (int64_t w = 0; w * kWordKeys < count; ++w) {
    const int64_t a = imax(low - w * kWordKeys, 0), z = imin(high - w * kWordKeys, kWordKeys);
    words[w] = a >= z ? 0 : (~0ull << a) & (~0ull >> (kWordKeys - z));
  }
}

// These three ask the rule of a node for its `range`, `cover` and `bits`, which is how rules ask those inside of
// them; masks/rules.h defines them.

// What positions begin ≤ t < end of the other axis can be linked to on axis `To` lies in this interval (it may
// hold others too).
template <Axis To>
inline Range linked_range(const MaskNode& m, const Extent& x, int64_t begin, int64_t end);

// What the rule leaves of a tile.
inline Cover tile_cover(const MaskNode& m, const Extent& x, const Tile& t);

// Bit t of the words says whether query i may see key j0 + t, for t < count ≤ kMaxWords·64; the bits after
// them are 0.
inline void row_bits(const MaskNode& m, const Extent& x, int64_t i, int64_t j0, int64_t count, uint64_t* words);

// The base of every rule. A rule defines `read`, which fills its node or refuses what does not fit a call of b
// batch rows and h heads, `cover` and `bits`, and `range` where it can narrow the keys or the queries.
struct AnyRule {
  template <Axis To>
  static Range range(const MaskNode&, const Extent& x, int64_t, int64_t) {
    return {0, To == Axis::keys ? x.j : x.i};
  }
};

}  // namespace limelight::LIMELIGHT_ISA
