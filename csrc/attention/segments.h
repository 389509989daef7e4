// How the queries are cut into pieces of work.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "attention/problem.h"

namespace limelight {

// The documents that hold for a whole mask, at its root or as a side of an "and" there; or null.
const MaskNode* outer_documents(const Mask& mask);

constexpr int64_t kBlockRows = 384;

struct Segment {
  int64_t begin, end;              // queries
  int64_t block_begin, block_end;  // of the kBlockRows that they are among, cut alike whatever their number
};

// Pieces of at most `rows` queries which together are all queries, in order. Where the mask packs
// documents, no piece holds queries of two of them. Blocks are whole pieces if `rows` divides kBlockRows.
class Segments {
 public:
  Segments(const Mask& mask, int64_t queries, int64_t rows);

  int64_t count() const { return count_; }
  Segment operator[](int64_t t) const {
    if (!list_.empty()) return list_[static_cast<size_t>(t)];
    return piece(0, queries_, t * rows_);
  }

 private:
  // The piece from `begin` of what reaches from `first` to `last`.
  Segment piece(int64_t first, int64_t last, int64_t begin) const {
    const int64_t block = first + (begin - first) / kBlockRows * kBlockRows;
    return {begin, std::min(last, begin + rows_), block, std::min(last, block + kBlockRows)};
  }

  int64_t queries_, rows_, count_;
  std::vector<Segment> list_;  // empty: all are equal
};

}  // namespace limelight
