// A mask rule as the kernels read it (the numbers of the rules are those of ops/mask.py).
#pragma once

#include <cstdint>

namespace limelight {

enum class Rule : int64_t {
  band = 1,   // low ≤ j − p ≤ high, p = i + (aligned ? J − I : shift)
  stride,     // the same with aligned positions, and (j − p) a multiple of step
  span,       // table b: how many keys are real; aligned: they stand at the end
  anchors,    // table of at least J + 1: how many anchors stand before key j
  blocks,     // table heads × rows × columns of bytes
  dense,      // table b h i j of bytes, any strides
  documents,  // table 2 × (count + 1): where each begins, queries then keys; perhaps a rule inside
  both,
  either,
};

struct MaskNode {
  Rule rule;
  int64_t low, high;               // band, stride
  int64_t step;                    // stride
  int64_t aligned, shift;          // band; span: aligned
  const int64_t* table;            // span, anchors, documents
  const uint8_t* bytes;            // blocks, dense
  int64_t size[4], stride[4];      // blocks: size = heads rows columns; dense: the strides
  int64_t rows_of, columns_of;     // blocks: queries and keys of a block
  int64_t count;                   // documents
  const MaskNode *first, *second;  // both, either; first: the rule inside documents, or null
};

}  // namespace limelight
