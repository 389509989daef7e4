// A mask rule as the kernels read it.
//
// A mask arrives as a program of whole numbers in prefix order and a list of tables; <t> is the place of a table
// in the list, <child> a rule. The numbers of the rules are those of `Code` in ops/masks/mask.py:
//
//    1  BAND <low> <high> <aligned> <shift>
//    2  STRIDE <step> <low> <high>
//    3  SPAN <t: int64, b> <at end>
//    4  ANCHORS <t: int64, J + 1>
//    5  BLOCKS <t: bool, heads × rows × columns> <queries of a block> <keys of a block>
//    6  DENSE <t: bool, b h i j, any strides>
//    7  DOCUMENTS <t: int64, 2 × (documents + 1)> <0, or 1 and a child>
//    8  AND <child> <child>
//    9  OR <child> <child>
//   10  NOT <child>
//   11  LINKS <t: int64, count × 2>: all but these (query, key), which rise by query, then key, without repeats;
//       pairs outside of the call (or, inside DOCUMENTS, of the document) forbid nothing
//
// A program whose rules nest deeper than kMaxDepth is refused: they are evaluated by recursion, also on the small
// stacks of worker threads.
#pragma once

#include <cstdint>

namespace limelight {

enum class Rule : int64_t {
  band = 1,   // low ≤ j − p ≤ high, p = i + (aligned ? J − I : 0)
  stride,     // the same with aligned positions, and (j − p) a multiple of step
  span,       // table b: how many keys are real; aligned: they stand at the end
  anchors,    // table of at least J + 1: how many anchors stand before key j
  blocks,     // table heads × rows × columns of bytes
  dense,      // table b h i j of bytes, any strides
  documents,  // table 2 × (count + 1): where each begins, queries then keys; perhaps a rule inside
  logical_and,
  logical_or,
  logical_not,
  links,  // table count × 2: every pair but these
};

inline constexpr int kMaxDepth = 256;

// Stands for "no limit". Positions are far below it, and sums of two such numbers do not overflow.
inline constexpr int64_t kUnlimited = int64_t{1} << 61;

struct MaskNode {
  Rule rule;
  int64_t low, high;                  // band, stride
  int64_t step;                       // stride
  int64_t aligned;                    // band, span
  const int64_t* table;               // span, anchors, documents, links
  const uint8_t* bytes;               // blocks, dense
  int64_t size[4], stride[4];         // blocks: size = heads rows columns; dense: the strides
  int64_t block_rows, block_columns;  // blocks: queries and keys of a block
  int64_t count;                      // documents, links
  const MaskNode *first, *second;     // and, or, not (first); first: the rule inside documents, or null
};

// A compiled mask: nodes[0] is the root; no nodes means that everything is allowed.
struct Mask {
  const MaskNode* nodes = nullptr;
  int64_t count = 0;

  explicit operator bool() const { return count != 0; }
};

}  // namespace limelight
