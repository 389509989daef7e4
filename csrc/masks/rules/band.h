// <low> <high> <aligned> <shift>: low ≤ j − p ≤ high, p = i + (aligned ? J − I : shift).
#pragma once

#include <algorithm>

#include "masks/rule.h"

namespace limelight::LIMELIGHT_ISA {

struct Band : AnyRule {
  // The shift of a band that is not aligned is added to its limits.
  static void read(MaskReader& reader, MaskNode& m, const Extent&) {
    m.low = reader.limit(), m.high = reader.limit(), m.aligned = reader.number();
    const int64_t shift = reader.limit();
    if (m.aligned) return;
    if (m.low > -kUnlimited) m.low = std::clamp(m.low + shift, -kUnlimited, kUnlimited);
    if (m.high < kUnlimited) m.high = std::clamp(m.high + shift, -kUnlimited, kUnlimited);
  }

  static int64_t shift_of(const MaskNode& m, const Extent& x) { return m.aligned ? x.j - x.i : 0; }

  template <Axis To>
  static Range range(const MaskNode& m, const Extent& x, int64_t begin, int64_t end) {
    constexpr bool kKeys = To == Axis::keys;
    const int64_t s = kKeys ? shift_of(m, x) : -shift_of(m, x);
    const int64_t low = kKeys ? m.low : -m.high, high = kKeys ? m.high : -m.low;
    return {imax(0, begin + s + low), imin(kKeys ? x.j : x.i, end - 1 + s + high + 1)};
  }

  static Cover cover(const MaskNode& m, const Extent& x, const Tile& t) {
    const int64_t s = shift_of(m, x);
    const int64_t min_offset = t.j0 - (t.i1 - 1 + s), max_offset = t.j1 - 1 - (t.i0 + s);
    if (max_offset < m.low || min_offset > m.high) return Cover::none;
    return min_offset >= m.low && max_offset <= m.high ? Cover::all : Cover::some;
  }

  static void bits(const MaskNode& m, const Extent& x, int64_t i, int64_t j0, int64_t count, uint64_t* words) {
    const int64_t p = i + shift_of(m, x) - j0;
    fill_bits(words, count, p + m.low, p + m.high + 1);
  }
};

}  // namespace limelight::LIMELIGHT_ISA
