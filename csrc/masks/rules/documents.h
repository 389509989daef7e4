// <t: int64, 2 × (count + 1)> <0, or 1 and a child>: where each document begins, queries then keys. The child
// applies inside each document, in its coordinates.
#pragma once

#include <algorithm>

#include "masks/rule.h"

namespace limelight::LIMELIGHT_ISA {

struct Documents : AnyRule {
  static void read(MaskReader& reader, MaskNode& m, const Extent& x) {
    const MaskTable& table = reader.int64_table(2, 2);
    m.table = static_cast<const int64_t*>(table.data);
    m.count = table.size[1] - 1;
    const int64_t *rows = m.table, *keys = m.table + m.count + 1;
    if (m.count < 0 || rows[0] || keys[0]) reader.refuse("the first document does not begin at 0");
    Extent longest{x.b, x.h, 0, 0};
    for (int64_t t = 0; t < m.count; ++t) {
      if (rows[t + 1] < rows[t] || keys[t + 1] < keys[t]) reader.refuse("a document has a negative length");
      longest.i = imax(longest.i, rows[t + 1] - rows[t]);
      longest.j = imax(longest.j, keys[t + 1] - keys[t]);
    }
    if (rows[m.count] != x.i || keys[m.count] != x.j)
      reader.refuse("documents have " + std::to_string(rows[m.count]) + " queries and " +
                    std::to_string(keys[m.count]) + " keys, expected " + std::to_string(x.i) + " and " +
                    std::to_string(x.j));
    if (reader.number()) m.first = reader.rule(longest);
  }

  // The document that holds a position, by the starts of all documents on its axis. Empty documents hold none.
  static int64_t document_at(const int64_t* starts, int64_t count, int64_t position) {
    int64_t low = 0, high = count;  // starts[low] ≤ position < starts[high]
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (starts[middle] <= position ? low : high) = middle;
    }
    return low;
  }

  // The extent of document t, for the rule inside it.
  static Extent extent_of(const MaskNode& m, const Extent& x, int64_t t) {
    const int64_t *rows = m.table, *keys = m.table + m.count + 1;
    return {x.b, x.h, rows[t + 1] - rows[t], keys[t + 1] - keys[t]};
  }

  template <Axis To>
  static Range range(const MaskNode& m, const Extent& x, int64_t begin, int64_t end) {
    constexpr bool kKeys = To == Axis::keys;
    const int64_t *rows = m.table, *keys = m.table + m.count + 1;
    const int64_t *from = kKeys ? rows : keys, *to = kKeys ? keys : rows;
    const int64_t t = document_at(from, m.count, begin), u = document_at(from, m.count, end - 1);
    if (t != u || !m.first) return {to[t], to[u + 1]};
    const Range inner = linked_range<To>(*m.first, extent_of(m, x, t), begin - from[t], end - from[t]);
    return {inner.low + to[t], inner.high + to[t]};
  }

  static Cover cover(const MaskNode& m, const Extent& x, const Tile& t) {
    const int64_t *rows = m.table, *keys = m.table + m.count + 1;
    const int64_t first = document_at(rows, m.count, t.i0), last = document_at(rows, m.count, t.i1 - 1);
    const int64_t j0 = imax(t.j0, keys[first]), j1 = imin(t.j1, keys[last + 1]);
    if (j0 >= j1) return Cover::none;
    if (first != last) return Cover::some;
    Cover inner = Cover::all;
    if (m.first) {
      const int64_t i = rows[first], j = keys[first];
      inner = tile_cover(*m.first, extent_of(m, x, first), {t.i0 - i, t.i1 - i, j0 - j, j1 - j});
    }
    const bool inside = j0 == t.j0 && j1 == t.j1;
    return inner == Cover::all && !inside ? Cover::some : inner;
  }

  static void bits(const MaskNode& m, const Extent& x, int64_t i, int64_t j0, int64_t count, uint64_t* words) {
    const int64_t *rows = m.table, *keys = m.table + m.count + 1;
    const int64_t t = document_at(rows, m.count, i);
    const int64_t low = imax(j0, keys[t]), high = imin(j0 + count, keys[t + 1]);
    fill_bits(words, count, low - j0, high - j0);
    if (!m.first || low >= high) return;
    uint64_t inner[kMaxWords + 1];
    row_bits(*m.first, extent_of(m, x, t), i - rows[t], low - keys[t], high - low, inner);
    inner[(high - low + kWordKeys - 1) / kWordKeys] = 0;
    const int64_t offset = low - j0, skip = offset / kWordKeys, bits = offset % kWordKeys;
    for (int64_t w = skip; w * kWordKeys < high - j0; ++w) {
      uint64_t shifted = w - skip < (high - low + kWordKeys - 1) / kWordKeys ? inner[w - skip] << bits : 0;
      if (bits && w > skip) shifted |= inner[w - skip - 1] >> (kWordKeys - bits);
      words[w] &= shifted;
    }
  }
};

}  // namespace limelight::LIMELIGHT_ISA
