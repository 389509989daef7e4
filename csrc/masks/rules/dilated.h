// <step> <low> <high>: an aligned band in which j − p is a multiple of step.
#pragma once

#include "masks/rules/band.h"

namespace limelight::LIMELIGHT_ISA {

struct Dilated : Band {
  static void read(MaskReader& reader, MaskNode& m, const Extent&) {
    m.step = reader.limit(), m.low = reader.limit(), m.high = reader.limit(), m.aligned = 1;
    if (m.step < 1) reader.refuse("a dilated band has step " + std::to_string(m.step) + ", expected at least 1");
  }

  static Cover cover(const MaskNode& m, const Extent& x, const Tile& t) {
    const Cover band = Band::cover(m, x, t);
    return band == Cover::all && m.step > 1 ? Cover::some : band;
  }

  static void bits(const MaskNode& m, const Extent& x, int64_t i, int64_t j0, int64_t count, uint64_t* words) {
    const int64_t p = i + shift_of(m, x) - j0;
    const int64_t low = imax(0, p + m.low), high = imin(count, p + m.high + 1);
    fill_bits(words, count, 0, 0);
    const int64_t remainder = ((low - p) % m.step + m.step) % m.step;
    for (int64_t t = low + (remainder ? m.step - remainder : 0); t < high; t += m.step)
      words[t / kWordKeys] |= 1ull << (t % kWordKeys);
  }
};

}  // namespace limelight::LIMELIGHT_ISA
