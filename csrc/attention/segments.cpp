#include "attention/segments.h"

#include "masks/rules.h"

namespace limelight {
namespace {

const MaskNode* documents_under(const MaskNode* node) {
  if (node->rule == Rule::Documents) return node;
  if (node->rule != Rule::And) return nullptr;
  const MaskNode* documents = documents_under(node->first);
  return documents ? documents : documents_under(node->second);
}

}  // namespace

const MaskNode* outer_documents(const Mask& mask) { return mask ? documents_under(mask.nodes) : nullptr; }

Segments::Segments(const Mask& mask, int64_t queries, int64_t rows)
    : queries_(queries), rows_(rows), count_((queries + rows - 1) / rows) {
  const MaskNode* documents = outer_documents(mask);
  if (!documents) return;
  const int64_t* starts = documents->table;
  for (int64_t t = 0; t < documents->count; ++t)
    for (int64_t i = starts[t]; i < starts[t + 1]; i += rows)
      list_.push_back(segment_at(i, starts[t], starts[t + 1]));
  count_ = static_cast<int64_t>(list_.size());
}

}  // namespace limelight
