// <t: int64, count × 2>: all but these (query, key) pairs, sorted by query, then key, without repeats. Pairs
// outside the call (inside Documents: outside the document) forbid nothing.
#pragma once

#include "masks/rule.h"

namespace limelight::LIMELIGHT_ISA {

struct Without : AnyRule {
  static void read(MaskReader& reader, MaskNode& m, const Extent&) {
    const MaskTable& table = reader.int64_table(2, 0);
    if (table.size[1] != 2)
      reader.refuse("a link has " + std::to_string(table.size[1]) + " numbers, expected 2: query and key");
    m.table = static_cast<const int64_t*>(table.data), m.count = table.size[0];
    for (int64_t t = 1; t < m.count; ++t) {
      const int64_t *before = m.table + 2 * (t - 1), *link = m.table + 2 * t;
      if (link[0] < before[0] || (link[0] == before[0] && link[1] <= before[1]))
        reader.refuse("links are not sorted, or repeat");
    }
  }

  // The index of the first link not before (i, j).
  static int64_t link_at(const MaskNode& m, int64_t i, int64_t j) {
    int64_t low = 0, high = m.count;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2, *link = m.table + 2 * middle;
      if (link[0] < i || (link[0] == i && link[1] < j))
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

  // Finds the links of each row by binary search, skipping those outside the tile.
  static Cover cover(const MaskNode& m, const Extent&, const Tile& t) {
    int64_t inside = 0;
    for (int64_t at = link_at(m, t.i0, t.j0); at < m.count && m.table[2 * at] < t.i1;) {
      const int64_t i = m.table[2 * at], j = m.table[2 * at + 1];
      if (j < t.j0) {
        at = link_at(m, i, t.j0);
      } else {
        if (j < t.j1) inside += link_at(m, i, t.j1) - at;
        at = link_at(m, i + 1, t.j0);
      }
    }
    return cover_of(inside < (t.i1 - t.i0) * (t.j1 - t.j0), inside == 0);
  }

  static void bits(const MaskNode& m, const Extent&, int64_t i, int64_t j0, int64_t count, uint64_t* words) {
    fill_bits(words, count, 0, count);
    for (int64_t at = link_at(m, i, j0); at < m.count && m.table[2 * at] == i; ++at) {
      const int64_t t = m.table[2 * at + 1] - j0;
      if (t >= count) break;
      words[t / kWordKeys] &= ~(1ull << (t % kWordKeys));
    }
  }
};

}  // namespace limelight::LIMELIGHT_ISA
