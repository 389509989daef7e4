// How the queries are cut into pieces of work.
#pragma once

#include <cstddef>
#include <vector>

#include "attention.h"

namespace limelight {

// The documents that hold for a whole mask, at its root or as a side of an "and" there; or null.
const MaskNode* outer_documents(const Mask& mask);

struct Segment {
  int64_t begin, end;  // queries
};

// Pieces of at most `rows` queries which together are all queries, in order. Where the mask packs
// documents, no piece holds queries of two of them.
class Segments {
 public:
  Segments(const Mask& mask, int64_t queries, int64_t rows);

  int64_t count() const { return count_; }
  Segment operator[](int64_t t) const {
    if (!list_.empty()) return list_[static_cast<size_t>(t)];
    const int64_t begin = t * rows_, end = begin + rows_;
    return {begin, end < queries_ ? end : queries_};
  }

 private:
  int64_t queries_, rows_, count_;
  std::vector<Segment> list_;  // empty: all are equal
};

}  // namespace limelight
