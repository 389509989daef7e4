// <t: bool, b h i j, any strides>. Any nonzero byte counts as true.
#pragma once

#include <cstring>

#include "masks/rule.h"

namespace limelight::LIMELIGHT_ISA {

struct Dense : AnyRule {
  static void read(MaskReader& reader, MaskNode& m, const Extent& x) {
    const MaskTable& table = reader.table(4, 1);
    const int64_t expected[4] = {x.b, x.h, x.i, x.j};
    m.bytes = static_cast<const uint8_t*>(table.data);
    for (size_t axis = 0; axis < 4; ++axis) {
      if (table.size[axis] < expected[axis])
        reader.refuse("a dense mask has size " + std::to_string(table.size[axis]) + " on axis " +
                      std::to_string(axis) + ", expected " + std::to_string(expected[axis]));
      m.size[axis] = table.size[axis], m.stride[axis] = table.stride[axis];
    }
  }

  static Cover cover(const MaskNode& m, const Extent& x, const Tile& t) {
    return cover_bytes(bytes_at(m, x, t.i0, t.j0), t.i1 - t.i0, t.j1 - t.j0, m.stride[2], m.stride[3]);
  }

  static void bits(const MaskNode& m, const Extent& x, int64_t i, int64_t j0, int64_t count, uint64_t* words) {
    const uint8_t* from = bytes_at(m, x, i, j0);
    const int64_t stride = m.stride[3];
    for (int64_t w = 0; w * kWordKeys < count; ++w) {
      const int64_t size = imin(count - w * kWordKeys, kWordKeys);
      const uint8_t* at = from + w * kWordKeys * stride;
      uint64_t word = 0;
      int64_t t = 0;
      if (stride == 1)
        for (; t + 8 <= size; t += 8) {
          uint64_t eight;
          std::memcpy(&eight, at + t, 8);
          // Nonzero bytes become 1, without carries between bytes; then one product collects the eight bits.
          constexpr uint64_t kLow = 0x7f7f7f7f7f7f7f7full;
          eight = ((((eight & kLow) + kLow) | eight) & ~kLow) >> 7;
          word |= (eight * 0x0102040810204080ull >> 56) << t;
        }
      for (; t < size; ++t) word |= uint64_t(at[t * stride] != 0) << t;
      words[w] = word;
    }
  }

  static const uint8_t* bytes_at(const MaskNode& m, const Extent& x, int64_t i, int64_t j) {
    const int64_t* s = m.stride;
    return m.bytes + x.b * s[0] + x.h * s[1] + i * s[2] + j * s[3];
  }

  static Cover cover_bytes(const uint8_t* from, int64_t rows, int64_t columns, int64_t row_stride,
                           int64_t column_stride) {
    bool any = false, every = true;
    if (row_stride == 0) rows = 1;
    if (column_stride == 0) columns = 1;
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t* row = from + r * row_stride;
      if (column_stride == 1) {
        for (int64_t c = 0; c < columns; ++c) any |= row[c] != 0, every &= row[c] != 0;
      } else {
        for (int64_t c = 0; c < columns; ++c)
          any |= row[c * column_stride] != 0, every &= row[c * column_stride] != 0;
      }
      if (any && !every) return Cover::some;
    }
    return cover_of(any, every);
  }
};

}  // namespace limelight::LIMELIGHT_ISA
