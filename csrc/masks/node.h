// A mask as the kernels evaluate it: a tree of nodes, one for each rule of a program.
#pragma once

#include <cstdint>

namespace limelight {

enum class Rule : int64_t;  // masks/rules.h lists them

// Means "no limit". Positions are far below it, and the sum of two such limits does not overflow.
inline constexpr int64_t kUnlimited = int64_t{1} << 61;

struct MaskNode {
  Rule rule;
  int64_t low, high;                  // Band, Dilated
  int64_t step;                       // Dilated
  int64_t aligned;                    // Band, Dilated, Padding
  const int64_t* table;               // Padding, Anchors, Documents, Without
  const uint8_t* bytes;               // Blocks, Dense
  int64_t size[4], stride[4];         // Blocks: size = heads rows columns; Dense: the strides
  int64_t block_rows, block_columns;  // Blocks: queries and keys of a block
  int64_t count;                      // Documents, Without
  const MaskNode *first, *second;     // And, Or; Not: first; Documents: first is the rule inside, or null
};

// A compiled mask: nodes[0] is the root; no nodes means that everything is allowed.
struct Mask {
  const MaskNode* nodes = nullptr;
  int64_t count = 0;

  explicit operator bool() const { return count != 0; }
};

// The call that a rule is evaluated for: a batch row and a head (or their counts, while a program is read), and
// the numbers of queries and keys.
struct Extent {
  int64_t b, h, i, j;
};

}  // namespace limelight
