#include "segments.h"

#include <cstddef>

#include "mask_node.h"

namespace limelight {
namespace {

// Documents that hold for the whole mask: at its root, or a side of an "and" there.
const MaskNode* packing(const MaskNode* node) {
  if (node->rule == Rule::documents) return node;
  if (node->rule != Rule::both) return nullptr;
  const MaskNode* found = packing(node->first);
  return found ? found : packing(node->second);
}

}  // namespace

Segments::Segments(const Mask& mask, int64_t queries, int64_t rows)
    : queries_(queries), rows_(rows), count_((queries + rows - 1) / rows) {
  const MaskNode* documents = mask ? packing(mask.nodes) : nullptr;
  if (!documents) return;
  const int64_t* starts = documents->table;
  count_ = 0;
  for (int64_t t = 0; t < documents->count; ++t) count_ += (starts[t + 1] - starts[t] + rows - 1) / rows;
  list_ = new Segment[static_cast<size_t>(count_)];
  int64_t at = 0;
  for (int64_t t = 0; t < documents->count; ++t)
    for (int64_t i = starts[t]; i < starts[t + 1]; i += rows)
      list_[at++] = {i, i + rows < starts[t + 1] ? i + rows : starts[t + 1]};
}

Segments::~Segments() { delete[] list_; }

}  // namespace limelight
