// Which keys a query may see: the rules of ops/masks/, for tiles and for rows.
//
// A tile is none, all, or some; only tiles of the last kind cost work for each element. A rule under
// "documents" works in the coordinates of its document, hence the Extent that every function takes.
#pragma once

#include "masks/rule.h"
#include "simd/vector.h"

namespace limelight::LIMELIGHT_ISA {

enum class Cover { none, some, all };

struct Range {
  int64_t low, high;  // low ≤ x < high; empty when high ≤ low
};

struct Extent {
  int64_t b, h, i, j;  // a batch row and a head, and the numbers of queries and keys
};

inline constexpr int64_t kWordKeys = 64;
inline constexpr int64_t kMaxWords = 32;  // widest tile of row_bits: 2048 keys

LIMELIGHT_INLINE int64_t shift_of(const MaskNode& m, const Extent& x) {
  return m.rule == Rule::band && !m.aligned ? 0 : x.j - x.i;
}

// The real keys of a padded batch row.
LIMELIGHT_INLINE Range span_of(const MaskNode& m, const Extent& x) {
  const int64_t length = m.table[x.b];
  return m.aligned ? Range{x.j - length, x.j} : Range{0, length};
}

// The document that holds place `at` of the axis whose starts are given. Empty documents hold nothing.
inline int64_t document_at(const int64_t* starts, int64_t count, int64_t at) {
  int64_t low = 0, high = count;  // starts[low] ≤ at < starts[high]
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (starts[middle] <= at ? low : high) = middle;
  }
  return low;
}

// The call that a rule inside of document t sees.
LIMELIGHT_INLINE Extent document_extent(const MaskNode& m, const Extent& x, int64_t t) {
  const int64_t *rows = m.table, *keys = m.table + m.count + 1;
  return {x.b, x.h, rows[t + 1] - rows[t], keys[t + 1] - keys[t]};
}

enum class Axis { queries, keys };

// What positions begin ≤ t < end of the other axis can be linked to on axis `To` lies in this interval (it may
// hold others too).
template <Axis To>
inline Range linked_range(const MaskNode& m, const Extent& x, int64_t begin, int64_t end) {
  constexpr bool kKeys = To == Axis::keys;
  const Range whole{0, kKeys ? x.j : x.i};
  switch (m.rule) {
    case Rule::band:
    case Rule::stride: {
      const int64_t s = kKeys ? shift_of(m, x) : -shift_of(m, x);
      const int64_t low = kKeys ? m.low : -m.high, high = kKeys ? m.high : -m.low;
      return {imax(0, begin + s + low), imin(whole.high, end - 1 + s + high + 1)};
    }
    case Rule::span: {
      const Range real = span_of(m, x);
      if (kKeys) return {imax(0, real.low), imin(x.j, real.high)};
      return end <= real.low || begin >= real.high ? Range{0, 0} : whole;
    }
    case Rule::documents: {
      const int64_t *rows = m.table, *keys = m.table + m.count + 1;
      const int64_t *from = kKeys ? rows : keys, *to = kKeys ? keys : rows;
      const int64_t t = document_at(from, m.count, begin), u = document_at(from, m.count, end - 1);
      if (t != u || !m.first) return {to[t], to[u + 1]};
      const Range inner = linked_range<To>(*m.first, document_extent(m, x, t), begin - from[t], end - from[t]);
      return {inner.low + to[t], inner.high + to[t]};
    }
    case Rule::logical_and: {
      const Range a = linked_range<To>(*m.first, x, begin, end), c = linked_range<To>(*m.second, x, begin, end);
      return {imax(a.low, c.low), imin(a.high, c.high)};
    }
    case Rule::logical_or: {
      const Range a = linked_range<To>(*m.first, x, begin, end), c = linked_range<To>(*m.second, x, begin, end);
      if (a.high <= a.low) return c;
      if (c.high <= c.low) return a;
      return {imin(a.low, c.low), imax(a.high, c.high)};
    }
    default: return whole;
  }
}

// The keys that queries i0 … i1 can see.
inline Range key_range(const MaskNode& m, const Extent& x, int64_t i0, int64_t i1) {
  return linked_range<Axis::keys>(m, x, i0, i1);
}

// The queries that can see any of keys j0 … j1.
inline Range query_range(const MaskNode& m, const Extent& x, int64_t j0, int64_t j1) {
  return linked_range<Axis::queries>(m, x, j0, j1);
}

struct Tile {
  int64_t i0, i1, j0, j1;  // queries i0 ≤ i < i1, keys j0 ≤ j < j1; neither is empty
};

LIMELIGHT_INLINE Cover cover_of(bool any, bool every) {
  return every ? Cover::all : any ? Cover::some : Cover::none;
}

inline Cover cover_band(const MaskNode& m, const Extent& x, const Tile& t) {
  const int64_t s = shift_of(m, x);
  const int64_t min_offset = t.j0 - (t.i1 - 1 + s), max_offset = t.j1 - 1 - (t.i0 + s);
  if (max_offset < m.low || min_offset > m.high) return Cover::none;
  if (m.rule == Rule::stride && m.step > 1) return Cover::some;
  return min_offset >= m.low && max_offset <= m.high ? Cover::all : Cover::some;
}

inline Cover cover_anchors(const MaskNode& m, const Extent& x, const Tile& t) {
  const int64_t keys = m.table[t.j1] - m.table[t.j0];
  const int64_t p0 = imax(0, t.i0 + x.j - x.i), p1 = imin(x.j, t.i1 + x.j - x.i);
  const int64_t rows = p1 > p0 ? m.table[p1] - m.table[p0] : 0;
  return cover_of(keys || rows, keys == t.j1 - t.j0 || rows == t.i1 - t.i0);
}

inline Cover cover_bytes(const uint8_t* from, int64_t rows, int64_t columns, int64_t row_stride,
                         int64_t column_stride) {
  bool any = false, every = true;  // a byte of a bool tensor may hold more than 0 and 1
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

// The layout of one head.
LIMELIGHT_INLINE const uint8_t* blocks_of(const MaskNode& m, int64_t h) {
  return m.bytes + (m.size[0] == 1 ? 0 : h) * m.size[1] * m.size[2];
}

// The first link that does not come before (i, j).
inline int64_t link_at(const MaskNode& m, int64_t i, int64_t j) {
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

// Goes from row to row by binary search, past the links outside of the tile.
inline Cover cover_links(const MaskNode& m, const Tile& t) {
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

inline Cover cover(const MaskNode& m, const Extent& x, const Tile& t);

inline Cover cover_documents(const MaskNode& m, const Extent& x, const Tile& t) {
  const int64_t *rows = m.table, *keys = m.table + m.count + 1;
  const int64_t first = document_at(rows, m.count, t.i0), last = document_at(rows, m.count, t.i1 - 1);
  const int64_t j0 = imax(t.j0, keys[first]), j1 = imin(t.j1, keys[last + 1]);
  if (j0 >= j1) return Cover::none;
  if (first != last) return Cover::some;
  Cover inner = Cover::all;
  if (m.first) {
    const int64_t i = rows[first], j = keys[first];
    inner = cover(*m.first, document_extent(m, x, first), {t.i0 - i, t.i1 - i, j0 - j, j1 - j});
  }
  const bool inside = j0 == t.j0 && j1 == t.j1;
  return inner == Cover::all && !inside ? Cover::some : inner;
}

// What the rule leaves of a tile.
inline Cover cover(const MaskNode& m, const Extent& x, const Tile& t) {
  switch (m.rule) {
    case Rule::band:
    case Rule::stride: return cover_band(m, x, t);
    case Rule::span: {
      const Range real = span_of(m, x);
      return cover_of(t.j0 < real.high && t.j1 > real.low, t.j0 >= real.low && t.j1 <= real.high);
    }
    case Rule::anchors: return cover_anchors(m, x, t);
    case Rule::blocks: {
      const int64_t r0 = t.i0 / m.block_rows, r1 = (t.i1 - 1) / m.block_rows + 1;
      const int64_t c0 = t.j0 / m.block_columns, c1 = (t.j1 - 1) / m.block_columns + 1;
      return cover_bytes(blocks_of(m, x.h) + r0 * m.size[2] + c0, r1 - r0, c1 - c0, m.size[2], 1);
    }
    case Rule::dense: {
      const int64_t* s = m.stride;
      const uint8_t* from = m.bytes + x.b * s[0] + x.h * s[1] + t.i0 * s[2] + t.j0 * s[3];
      return cover_bytes(from, t.i1 - t.i0, t.j1 - t.j0, s[2], s[3]);
    }
    case Rule::documents: return cover_documents(m, x, t);
    case Rule::logical_and: {
      const Cover a = cover(*m.first, x, t);
      if (a == Cover::none) return a;
      const Cover c = cover(*m.second, x, t);
      return a == Cover::all ? c : c == Cover::all ? a : c;
    }
    case Rule::logical_or: {
      const Cover a = cover(*m.first, x, t);
      if (a == Cover::all) return a;
      const Cover c = cover(*m.second, x, t);
      return a == Cover::none ? c : c == Cover::none ? a : c;
    }
    case Rule::logical_not: {
      const Cover a = cover(*m.first, x, t);
      return a == Cover::all ? Cover::none : a == Cover::none ? Cover::all : a;
    }
    case Rule::links: return cover_links(m, t);
  }
  return Cover::some;
}

// Bits low ≤ t < high of the words, all others 0.
inline void fill_bits(uint64_t* words, int64_t count, int64_t low, int64_t high) {
  low = imax(low, 0), high = imin(high, count);
  for (int64_t w = 0; w * kWordKeys < count; ++w) {
    const int64_t a = imax(low - w * kWordKeys, 0), z = imin(high - w * kWordKeys, kWordKeys);
    words[w] = a >= z ? 0 : (~0ull << a) & (~0ull >> (kWordKeys - z));
  }
}

inline void row_bits(const MaskNode& m, const Extent& x, int64_t i, int64_t j0, int64_t count, uint64_t* words);

inline void bits_anchors(const MaskNode& m, const Extent& x, int64_t i, int64_t j0, int64_t count,
                         uint64_t* words) {
  const int64_t p = i + x.j - x.i;
  const bool anchor = p >= 0 && p < x.j && m.table[p + 1] != m.table[p];
  fill_bits(words, count, 0, anchor ? count : 0);
  if (anchor) return;
  for (int64_t t = 0; t < count; ++t)
    words[t / kWordKeys] |= uint64_t(m.table[j0 + t + 1] != m.table[j0 + t]) << (t % kWordKeys);
}

inline void bits_blocks(const MaskNode& m, const Extent& x, int64_t i, int64_t j0, int64_t count,
                        uint64_t* words) {
  const uint8_t* row = blocks_of(m, x.h) + i / m.block_rows * m.size[2];
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

inline void bits_bytes(const uint8_t* from, int64_t stride, int64_t count, uint64_t* words) {
  for (int64_t w = 0; w * kWordKeys < count; ++w) {
    const int64_t size = imin(count - w * kWordKeys, kWordKeys);
    const uint8_t* at = from + w * kWordKeys * stride;
    uint64_t word = 0;
    int64_t t = 0;
    if (stride == 1)
      for (; t + 8 <= size; t += 8) {
        uint64_t eight;
        std::memcpy(&eight, at + t, 8);
        // Whatever is not 0 becomes 1, without carries between bytes; then one product gathers eight bits.
        constexpr uint64_t kLow = 0x7f7f7f7f7f7f7f7full;
        eight = ((((eight & kLow) + kLow) | eight) & ~kLow) >> 7;
        word |= (eight * 0x0102040810204080ull >> 56) << t;
      }
    for (; t < size; ++t) word |= uint64_t(at[t * stride] != 0) << t;
    words[w] = word;
  }
}

inline void bits_documents(const MaskNode& m, const Extent& x, int64_t i, int64_t j0, int64_t count,
                           uint64_t* words) {
  const int64_t *rows = m.table, *keys = m.table + m.count + 1;
  const int64_t t = document_at(rows, m.count, i);
  const int64_t low = imax(j0, keys[t]), high = imin(j0 + count, keys[t + 1]);
  fill_bits(words, count, low - j0, high - j0);
  if (!m.first || low >= high) return;
  uint64_t inner[kMaxWords + 1];
  row_bits(*m.first, document_extent(m, x, t), i - rows[t], low - keys[t], high - low, inner);
  inner[(high - low + kWordKeys - 1) / kWordKeys] = 0;
  const int64_t offset = low - j0, skip = offset / kWordKeys, bits = offset % kWordKeys;
  for (int64_t w = skip; w * kWordKeys < high - j0; ++w) {
    uint64_t shifted = w - skip < (high - low + kWordKeys - 1) / kWordKeys ? inner[w - skip] << bits : 0;
    if (bits && w > skip) shifted |= inner[w - skip - 1] >> (kWordKeys - bits);
    words[w] &= shifted;
  }
}

// Bit t of the words says whether query i may see key j0 + t, for t < count ≤ kMaxWords·64; the bits after
// them are 0.
inline void row_bits(const MaskNode& m, const Extent& x, int64_t i, int64_t j0, int64_t count, uint64_t* words) {
  switch (m.rule) {
    case Rule::band: {
      const int64_t p = i + shift_of(m, x) - j0;
      return fill_bits(words, count, p + m.low, p + m.high + 1);
    }
    case Rule::stride: {
      const int64_t p = i + shift_of(m, x) - j0;
      const int64_t low = imax(0, p + m.low), high = imin(count, p + m.high + 1);
      fill_bits(words, count, 0, 0);
      const int64_t remainder = ((low - p) % m.step + m.step) % m.step;
      for (int64_t t = low + (remainder ? m.step - remainder : 0); t < high; t += m.step)
        words[t / kWordKeys] |= 1ull << (t % kWordKeys);
      return;
    }
    case Rule::span: return fill_bits(words, count, span_of(m, x).low - j0, span_of(m, x).high - j0);
    case Rule::anchors: return bits_anchors(m, x, i, j0, count, words);
    case Rule::blocks: return bits_blocks(m, x, i, j0, count, words);
    case Rule::dense: {
      const int64_t* s = m.stride;
      return bits_bytes(m.bytes + x.b * s[0] + x.h * s[1] + i * s[2] + j0 * s[3], s[3], count, words);
    }
    case Rule::documents: return bits_documents(m, x, i, j0, count, words);
    case Rule::logical_and:
    case Rule::logical_or: {
      uint64_t other[kMaxWords];
      row_bits(*m.first, x, i, j0, count, words);
      row_bits(*m.second, x, i, j0, count, other);
      for (int64_t w = 0; w * kWordKeys < count; ++w)
        words[w] = m.rule == Rule::logical_and ? words[w] & other[w] : words[w] | other[w];
      return;
    }
    case Rule::logical_not: {
      uint64_t inner[kMaxWords];
      row_bits(*m.first, x, i, j0, count, inner);
      fill_bits(words, count, 0, count);
      for (int64_t w = 0; w * kWordKeys < count; ++w) words[w] &= ~inner[w];
      return;
    }
    case Rule::links:
      fill_bits(words, count, 0, count);
      for (int64_t at = link_at(m, i, j0); at < m.count && m.table[2 * at] == i; ++at) {
        const int64_t t = m.table[2 * at + 1] - j0;
        if (t >= count) break;
        words[t / kWordKeys] &= ~(1ull << (t % kWordKeys));
      }
      return;
  }
}

LIMELIGHT_INLINE bool bit(const uint64_t* words, int64_t t) { return words[t / kWordKeys] >> (t % kWordKeys) & 1; }

// scores[t] = −inf where bit t is 0. `scores` is readable and writable up to the next multiple of W.
LIMELIGHT_INLINE void apply_mask(float* scores, const uint64_t* words, int64_t count) {
  const vi lane = splat_i(1) << iota();
  const vf masked = splat(kMasked);
  for (int64_t t = 0; t < count; t += W) {
    const uint64_t word = words[t / kWordKeys] >> (t % kWordKeys);
    const int32_t bits = static_cast<int32_t>(word & ((1ull << W) - 1));
    if (bits == (1 << W) - 1) continue;
    store(scores + t, select((splat_i(bits) & lane) != 0, load(scores + t), masked));
  }
}

}  // namespace limelight::LIMELIGHT_ISA
