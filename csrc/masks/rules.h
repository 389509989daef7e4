// The table of all rules, and the dispatch to the rule of a node.
//
// A rule has the code and the name of its class in ops/masks/; its file documents its arguments.
#pragma once

#include "masks/rules/anchors.h"
#include "masks/rules/band.h"
#include "masks/rules/blocks.h"
#include "masks/rules/combine.h"
#include "masks/rules/dense.h"
#include "masks/rules/dilated.h"
#include "masks/rules/documents.h"
#include "masks/rules/links.h"
#include "masks/rules/padding.h"

#define LIMELIGHT_MASK_RULES(X) \
  X(1, Band)                    \
  X(2, Dilated)                 \
  X(3, Padding)                 \
  X(4, Anchors)                 \
  X(5, Blocks)                  \
  X(6, Dense)                   \
  X(7, Documents)               \
  X(8, And)                     \
  X(9, Or)                      \
  X(10, Not)                    \
  X(11, Without)

namespace limelight {

#define LIMELIGHT_ENUMERATOR(code, Class) Class = code,
enum class Rule : int64_t { LIMELIGHT_MASK_RULES(LIMELIGHT_ENUMERATOR) };
#undef LIMELIGHT_ENUMERATOR

}  // namespace limelight

namespace limelight::LIMELIGHT_ISA {

inline bool is_rule(Rule rule) {
  switch (rule) {
#define LIMELIGHT_CASE(code, Class) case Rule::Class:
    LIMELIGHT_MASK_RULES(LIMELIGHT_CASE) return true;
#undef LIMELIGHT_CASE
  }
  return false;
}

// Calls body(Class{}) with the class of a rule, which is_rule must hold for. The compiler can inline the cases.
template <class Body>
LIMELIGHT_INLINE auto dispatch_rule(Rule rule, const Body& body) {
  switch (rule) {
#define LIMELIGHT_CASE(code, Class) \
  case Rule::Class: return body(Class{});
    LIMELIGHT_MASK_RULES(LIMELIGHT_CASE)
#undef LIMELIGHT_CASE
  }
  __builtin_unreachable();
}

template <Axis To>
inline Range linked_range(const MaskNode& m, const Extent& x, int64_t begin, int64_t end) {
  return dispatch_rule(m.rule, [&]<class R>(R) { return R::template range<To>(m, x, begin, end); });
}

inline Cover tile_cover(const MaskNode& m, const Extent& x, const Tile& t) {
  return dispatch_rule(m.rule, [&]<class R>(R) { return R::cover(m, x, t); });
}

inline void row_bits(const MaskNode& m, const Extent& x, int64_t i, int64_t j0, int64_t count, uint64_t* words) {
  return dispatch_rule(m.rule, [&]<class R>(R) { R::bits(m, x, i, j0, count, words); });
}

}  // namespace limelight::LIMELIGHT_ISA
