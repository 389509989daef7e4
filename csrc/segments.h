// How the queries are cut into pieces of work.
#pragma once

#include "attention.h"

namespace limelight {

struct Segment {
  int64_t begin, end;  // queries
};

// Pieces of at most `rows` queries which together are all queries, in order. Where the mask packs
// documents, no piece holds queries of two of them.
class Segments {
 public:
  Segments(const Mask& mask, int64_t queries, int64_t rows);
  ~Segments();
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;

  int64_t count() const { return count_; }
  Segment operator[](int64_t t) const {
    if (list_) return list_[t];
    const int64_t begin = t * rows_, end = begin + rows_;
    return {begin, end < queries_ ? end : queries_};
  }

 private:
  int64_t queries_, rows_, count_;
  Segment* list_ = nullptr;
};

}  // namespace limelight
