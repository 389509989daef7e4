// <t: int64, b> <aligned>: how many keys of each batch row are real; if aligned, the last ones (left padding),
// else the first.
#pragma once

#include "masks/rule.h"

namespace limelight::LIMELIGHT_ISA {

struct Padding : AnyRule {
  static void read(MaskReader& reader, MaskNode& m, const Extent& x) {
    m.table = static_cast<const int64_t*>(reader.int64_table(1, x.b).data);
    m.aligned = reader.number();
    for (int64_t b = 0; b < x.b; ++b)
      if (m.table[b] < 0 || m.table[b] > x.j)
        reader.refuse("padding has a length of " + std::to_string(m.table[b]) +
                      ", expected 0 … j = " + std::to_string(x.j));
  }

  static Range real_keys(const MaskNode& m, const Extent& x) {
    const int64_t length = m.table[x.b];
    return m.aligned ? Range{x.j - length, x.j} : Range{0, length};
  }

  template <Axis To>
  static Range range(const MaskNode& m, const Extent& x, int64_t begin, int64_t end) {
    const Range real = real_keys(m, x);
    if (To == Axis::keys) return {imax(0, real.low), imin(x.j, real.high)};
    return end <= real.low || begin >= real.high ? Range{0, 0} : Range{0, x.i};
  }

  static Cover cover(const MaskNode& m, const Extent& x, const Tile& t) {
    const Range real = real_keys(m, x);
    return cover_of(t.j0 < real.high && t.j1 > real.low, t.j0 >= real.low && t.j1 <= real.high);
  }

  static void bits(const MaskNode& m, const Extent& x, int64_t, int64_t j0, int64_t count, uint64_t* words) {
    const Range real = real_keys(m, x);
    fill_bits(words, count, real.low - j0, real.high - j0);
  }
};

}  // namespace limelight::LIMELIGHT_ISA
