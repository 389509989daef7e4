// And, Or: <child> <child>. Not: <child>.
#pragma once

#include "masks/rule.h"

namespace limelight::LIMELIGHT_ISA {

struct And : AnyRule {
  static void read(MaskReader& reader, MaskNode& m, const Extent& x) {
    m.first = reader.rule(x), m.second = reader.rule(x);
  }

  template <Axis To>
  static Range range(const MaskNode& m, const Extent& x, int64_t begin, int64_t end) {
    const Range a = linked_range<To>(*m.first, x, begin, end), c = linked_range<To>(*m.second, x, begin, end);
    return {imax(a.low, c.low), imin(a.high, c.high)};
  }

  static Cover cover(const MaskNode& m, const Extent& x, const Tile& t) {
    const Cover a = tile_cover(*m.first, x, t);
    if (a == Cover::none) return a;
    const Cover c = tile_cover(*m.second, x, t);
    return a == Cover::all ? c : c == Cover::all ? a : c;
  }

  static void bits(const MaskNode& m, const Extent& x, int64_t i, int64_t j0, int64_t count, uint64_t* words) {
    uint64_t other[kMaxWords];
    row_bits(*m.first, x, i, j0, count, words);
    row_bits(*m.second, x, i, j0, count, other);
    for (int64_t w = 0; w * kWordKeys < count; ++w) words[w] &= other[w];
  }
};

struct Or : AnyRule {
  static void read(MaskReader& reader, MaskNode& m, const Extent& x) {
    m.first = reader.rule(x), m.second = reader.rule(x);
  }

  template <Axis To>
  static Range range(const MaskNode& m, const Extent& x, int64_t begin, int64_t end) {
    const Range a = linked_range<To>(*m.first, x, begin, end), c = linked_range<To>(*m.second, x, begin, end);
    if (a.high <= a.low) return c;
    if (c.high <= c.low) return a;
    return {imin(a.low, c.low), imax(a.high, c.high)};
  }

  static Cover cover(const MaskNode& m, const Extent& x, const Tile& t) {
    const Cover a = tile_cover(*m.first, x, t);
    if (a == Cover::all) return a;
    const Cover c = tile_cover(*m.second, x, t);
    return a == Cover::none ? c : c == Cover::none ? a : c;
  }

  static void bits(const MaskNode& m, const Extent& x, int64_t i, int64_t j0, int64_t count, uint64_t* words) {
    uint64_t other[kMaxWords];
    row_bits(*m.first, x, i, j0, count, words);
    row_bits(*m.second, x, i, j0, count, other);
    for (int64_t w = 0; w * kWordKeys < count; ++w) words[w] |= other[w];
  }
};

struct Not : AnyRule {
  static void read(MaskReader& reader, MaskNode& m, const Extent& x) { m.first = reader.rule(x); }

  static Cover cover(const MaskNode& m, const Extent& x, const Tile& t) {
    const Cover a = tile_cover(*m.first, x, t);
    return a == Cover::all ? Cover::none : a == Cover::none ? Cover::all : a;
  }

  static void bits(const MaskNode& m, const Extent& x, int64_t i, int64_t j0, int64_t count, uint64_t* words) {
    uint64_t inner[kMaxWords];
    row_bits(*m.first, x, i, j0, count, inner);
    fill_bits(words, count, 0, count);
    for (int64_t w = 0; w * kWordKeys < count; ++w) words[w] &= ~inner[w];
  }
};

}  // namespace limelight::LIMELIGHT_ISA
