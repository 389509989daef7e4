// <t: int64, at least J + 1>: the number of anchors before key j. Anchors see every key, and every query sees
// them.
#pragma once

#include "masks/rule.h"

namespace limelight::LIMELIGHT_ISA {

struct Anchors : AnyRule {
  static void read(MaskReader& reader, MaskNode& m, const Extent& x) {
    m.table = static_cast<const int64_t*>(reader.int64_table(1, x.j + 1).data);
  }

  static Cover cover(const MaskNode& m, const Extent& x, const Tile& t) {
    const int64_t keys = m.table[t.j1] - m.table[t.j0];
    const int64_t p0 = imax(0, t.i0 + x.j - x.i), p1 = imin(x.j, t.i1 + x.j - x.i);
    const int64_t rows = p1 > p0 ? m.table[p1] - m.table[p0] : 0;
    return cover_of(keys || rows, keys == t.j1 - t.j0 || rows == t.i1 - t.i0);
  }

  static void bits(const MaskNode& m, const Extent& x, int64_t i, int64_t j0, int64_t count, uint64_t* words) {
    const int64_t p = i + x.j - x.i;
    const bool anchor = p >= 0 && p < x.j && m.table[p + 1] != m.table[p];
    fill_bits(words, count, 0, anchor ? count : 0);
    if (anchor) return;
    for (int64_t t = 0; t < count; ++t)
      words[t / kWordKeys] |= uint64_t(m.table[j0 + t + 1] != m.table[j0 + t]) << (t % kWordKeys);
  }
};

}  // namespace limelight::LIMELIGHT_ISA
