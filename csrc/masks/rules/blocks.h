// <t: bool, heads × rows × columns> <queries of a block> <keys of a block>: a layout of blocks, one for all heads
// or one for each.
#pragma once

#include <algorithm>

#include "masks/rules/dense.h"

namespace limelight::LIMELIGHT_ISA {

struct Blocks : AnyRule {
  static void read(MaskReader& reader, MaskNode& m, const Extent& x) {
    const MaskTable& table = reader.contiguous_table(3, 1);
    m.bytes = static_cast<const uint8_t*>(table.data);
    std::copy_n(table.size.begin(), 3, m.size);
    m.block_rows = reader.limit(), m.block_columns = reader.limit();
    if (m.block_rows < 1 || m.block_columns < 1)
      reader.refuse("a block has " + std::to_string(m.block_rows) + " queries and " +
                    std::to_string(m.block_columns) + " keys, expected at least 1");
    if (m.size[0] != 1 && m.size[0] != x.h)
      reader.refuse("a layout of blocks has " + std::to_string(m.size[0]) + " heads, expected 1 or " +
                    std::to_string(x.h));
    if (m.size[1] < ceil_div(x.i, m.block_rows) || m.size[2] < ceil_div(x.j, m.block_columns))
      reader.refuse("a layout of blocks is smaller than the call");
  }

  static const uint8_t* layout_of(const MaskNode& m, int64_t h) {
    return m.bytes + (m.size[0] == 1 ? 0 : h) * m.size[1] * m.size[2];
  }

  static Cover cover(const MaskNode& m, const Extent& x, const Tile& t) {
    const int64_t r0 = t.i0 / m.block_rows, r1 = (t.i1 - 1) / m.block_rows + 1;
    const int64_t c0 = t.j0 / m.block_columns, c1 = (t.j1 - 1) / m.block_columns + 1;
    return Dense::cover_bytes(layout_of(m, x.h) + r0 * m.size[2] + c0, r1 - r0, c1 - c0, m.size[2], 1);
  }

  static void bits(const MaskNode& m, const Extent& x, int64_t i, int64_t j0, int64_t count, uint64_t* words) {
    const uint8_t* row = layout_of(m, x.h) + i / m.block_rows * m.size[2];
    fill_bits(words, count, 0, 0);
    for (int64_t t = 0; t < count;) {
      const int64_t c = (j0 + t) / m.block_columns, end = imin((c + 1) * m.block_columns - j0, count);
      if (row[c])
        for (int64_t w = t / kWordKeys; w * kWordKeys < end; ++w) {
          const int64_t a = imax(t - w * kWordKeys, 0), z = imin(end - w * kWordKeys, kWordKeys);
          words[w] |= (~0ull << a) & (~0ull >> (kWordKeys - z));
        }
      t = end;
    }
  }
};

}  // namespace limelight::LIMELIGHT_ISA
