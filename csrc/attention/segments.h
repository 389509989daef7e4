// How the queries are divided among jobs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "attention/problem.h"

namespace limelight {

// The Documents rule that applies to the whole mask: its root, or an operand of a conjunction at the root; or
// null.
const MaskNode* outer_documents(const Mask& mask);

constexpr int64_t kBlockRows = 384;

struct Segment {
  int64_t begin, end;  // queries
  int64_t block_begin,
      block_end;  // the block of kBlockRows queries that holds them, the same for any segment size
};

// All queries in order, in segments of at most `rows`. Where the mask packs documents, no segment crosses from one
// document to the next. If `rows` divides kBlockRows, a block consists of whole segments.
class Segments {
 public:
  Segments(const Mask& mask, int64_t queries, int64_t rows);

  int64_t count() const { return count_; }
  Segment operator[](int64_t t) const {
    if (!list_.empty()) return list_[static_cast<size_t>(t)];
    return segment_at(t * rows_, 0, queries_);
  }

 private:
  // The segment that begins at `begin`, within queries first … last.
  Segment segment_at(int64_t begin, int64_t first, int64_t last) const {
    const int64_t block = first + (begin - first) / kBlockRows * kBlockRows;
    return {begin, std::min(last, begin + rows_), block, std::min(last, block + kBlockRows)};
  }

  int64_t queries_, rows_, count_;
  std::vector<Segment> list_;  // empty if all segments but the last have equal size
};

}  // namespace limelight
