#include "mask_program.h"

#include <stdexcept>
#include <string>

#include "mask_node.h"

namespace limelight {

struct MaskProgram::Reader {
  const std::vector<int64_t>& program;
  const std::vector<MaskTable>& tables;
  const int64_t (&call)[4];
  std::vector<MaskNode>& nodes;
  size_t at = 0;

  [[noreturn]] static void refuse(const std::string& why) {
    throw std::invalid_argument("the mask program is damaged: " + why);
  }

  int64_t number() {
    if (at >= program.size()) refuse("it ends early");
    return program[at++];
  }

  const MaskTable& table(size_t axes, int64_t element) {
    const int64_t which = number();
    if (which < 0 || which >= static_cast<int64_t>(tables.size())) refuse("a table is missing");
    const MaskTable& found = tables[static_cast<size_t>(which)];
    if (found.size.size() != axes || found.element != element) refuse("a table has another form");
    return found;
  }

  const int64_t* numbers(size_t axes, int64_t rows, int64_t columns) {
    const MaskTable& found = table(axes, 8);
    int64_t dense = 1;
    for (size_t axis = axes; axis-- > 0; dense *= found.size[axis])
      if (found.size[axis] != 1 && found.stride[axis] != dense) refuse("a table is not contiguous");
    if (found.size[0] != rows || (columns >= 0 && found.size[axes - 1] != columns)) refuse("a table does not fit");
    return static_cast<const int64_t*>(found.data);
  }

  // `inside` documents the numbers of queries and keys are those of a document, not of the call.
  MaskNode* node(bool inside) {
    nodes.push_back(MaskNode{});
    MaskNode& m = nodes.back();  // reserved: references stay valid
    m.rule = static_cast<Rule>(number());
    switch (m.rule) {
      case Rule::band: m.low = number(), m.high = number(), m.aligned = number(), m.shift = number(); break;
      case Rule::stride:
        m.step = number(), m.low = number(), m.high = number();
        if (m.step < 1) refuse("a step is not positive");
        break;
      case Rule::span: m.table = numbers(2, call[0], 2), check_spans(m); break;
      case Rule::anchors: m.table = numbers(1, call[3] + 1, -1); break;
      case Rule::blocks: blocks(m, inside); break;
      case Rule::dense: dense(m, inside); break;
      case Rule::documents: documents(m); break;
      case Rule::both:
      case Rule::either: m.first = node(inside), m.second = node(inside); break;
      default: refuse("an unknown rule");
    }
    return &m;
  }

  void check_spans(const MaskNode& m) const {
    for (int64_t b = 0; b < call[0]; ++b)
      if (m.table[2 * b] < 0 || m.table[2 * b + 1] > call[3]) refuse("a span leaves the keys");
  }

  void blocks(MaskNode& m, bool inside) {
    const MaskTable& found = table(3, 1);
    m.rows_of = number(), m.columns_of = number();
    if (m.rows_of < 1 || m.columns_of < 1) refuse("a block is empty");
    m.bytes = static_cast<const uint8_t*>(found.data);
    for (int axis = 0; axis < 3; ++axis) m.size[axis] = found.size[axis];
    if (m.size[0] != 1 && m.size[0] != call[1]) refuse("a layout has other heads");
    if (!inside && (m.size[1] * m.rows_of < call[2] || m.size[2] * m.columns_of < call[3]))
      refuse("a layout does not cover the call");
    if (found.stride[2] != 1 || found.stride[1] != m.size[2] || found.stride[0] != m.size[1] * m.size[2])
      if (m.size[0] * m.size[1] * m.size[2] > 1) contiguous(found);
  }

  static void contiguous(const MaskTable& found) {
    int64_t dense = 1;
    for (size_t axis = found.size.size(); axis-- > 0; dense *= found.size[axis])
      if (found.size[axis] != 1 && found.stride[axis] != dense) refuse("a layout is not contiguous");
  }

  void dense(MaskNode& m, bool inside) {
    const MaskTable& found = table(4, 1);
    m.bytes = static_cast<const uint8_t*>(found.data);
    for (int axis = 0; axis < 4; ++axis) {
      m.size[axis] = found.size[axis], m.stride[axis] = found.stride[axis];
      if (found.size[axis] != call[axis] && !(inside && axis > 1)) refuse("a dense mask does not fit the call");
    }
  }

  void documents(MaskNode& m) {
    const MaskTable& found = tables.at(static_cast<size_t>(at < program.size() ? program[at] : -1));
    m.table = numbers(2, 2, -1);
    m.count = found.size[1] - 1;
    const int64_t *rows = m.table, *keys = m.table + m.count + 1;
    if (m.count < 0 || rows[0] || keys[0]) refuse("documents do not begin at 0");
    for (int64_t t = 0; t < m.count; ++t)
      if (rows[t + 1] < rows[t] || keys[t + 1] < keys[t]) refuse("a document has a negative length");
    if (rows[m.count] != call[2] || keys[m.count] != call[3]) refuse("documents do not sum up");
    if (number()) m.first = node(true);
  }
};

MaskProgram::MaskProgram(const std::vector<int64_t>& program, const std::vector<MaskTable>& tables,
                         const int64_t (&call)[4])
    : i_(call[2]), j_(call[3]) {
  if (program.empty()) return;
  nodes_.reserve(program.size());  // a node takes at least one number
  Reader reader{program, tables, call, nodes_};
  reader.node(false);
  if (reader.at != program.size()) Reader::refuse("it goes on after its end");
}

MaskProgram::~MaskProgram() = default;

Mask MaskProgram::mask() const {
  return {nodes_.data(), static_cast<int64_t>(nodes_.size()), i_, j_};
}

}  // namespace limelight
