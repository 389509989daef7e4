#include "masks/program.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "masks/rule.h"

namespace limelight {

struct MaskProgram::Reader {
  const std::vector<int64_t>& program;
  const std::vector<MaskTable>& tables;
  const int64_t (&call)[4];
  std::vector<MaskNode>& nodes;
  size_t position = 0;
  int depth = 0;

  [[noreturn]] static void refuse(const std::string& why) {
    throw std::invalid_argument("the mask program is damaged: " + why);
  }

  int64_t number() {
    if (position >= program.size()) refuse("it ends early");
    return program[position++];
  }

  const MaskTable& take_table(size_t axes, int64_t element) {
    const int64_t which = number();
    if (which < 0 || which >= static_cast<int64_t>(tables.size())) refuse("a table is missing");
    const MaskTable& table = tables[static_cast<size_t>(which)];
    if (table.size.size() != axes || table.element != element) refuse("a table has another form");
    return table;
  }

  static void check_contiguous(const MaskTable& table) {
    int64_t dense = 1;
    bool packed = true;
    for (size_t axis = table.size.size(); axis-- > 0; dense *= table.size[axis])
      packed &= table.size[axis] == 1 || table.stride[axis] == dense;
    if (!packed && dense) refuse("a table is not contiguous");
  }

  // A contiguous table of int64, at least `first` long.
  const MaskTable& int64_table(size_t axes, int64_t first) {
    const MaskTable& table = take_table(axes, 8);
    check_contiguous(table);
    if (table.size[0] < first) refuse("a table is too short");
    return table;
  }

  // i and j: how many queries and keys the rule covers (inside documents: those of the longest).
  MaskNode* node(int64_t i, int64_t j) {
    if (++depth > kMaxDepth)
      throw std::invalid_argument("the mask nests more than " + std::to_string(kMaxDepth) + " rules");
    nodes.push_back(MaskNode{});
    MaskNode& m = nodes.back();  // reserved: references stay valid
    m.rule = static_cast<Rule>(number());
    switch (m.rule) {
      case Rule::band: band(m); break;
      case Rule::stride:
        m.step = clamped(number()), m.low = clamped(number()), m.high = clamped(number());
        if (m.step < 1) refuse("a step is not positive");
        break;
      case Rule::span: span(m, j); break;
      case Rule::anchors: m.table = static_cast<const int64_t*>(int64_table(1, j + 1).data); break;
      case Rule::blocks: blocks(m, i, j); break;
      case Rule::dense: dense(m, i, j); break;
      case Rule::documents: documents(m, i, j); break;
      case Rule::logical_and:
      case Rule::logical_or: m.first = node(i, j), m.second = node(i, j); break;
      case Rule::logical_not: m.first = node(i, j); break;
      case Rule::links: links(m); break;
      default: refuse("an unknown rule");
    }
    --depth;
    return &m;
  }

  static int64_t clamped(int64_t x) { return std::clamp(x, -kUnlimited, kUnlimited); }

  // A band that is not aligned has its shift in its limits.
  void band(MaskNode& m) {
    m.low = clamped(number()), m.high = clamped(number()), m.aligned = number();
    const int64_t shift = clamped(number());
    if (m.aligned) return;
    if (m.low > -kUnlimited) m.low = clamped(m.low + shift);
    if (m.high < kUnlimited) m.high = clamped(m.high + shift);
  }

  void links(MaskNode& m) {
    const MaskTable& table = int64_table(2, 0);
    if (table.size[1] != 2) refuse("links are not pairs");
    m.table = static_cast<const int64_t*>(table.data), m.count = table.size[0];
    for (int64_t t = 1; t < m.count; ++t) {
      const int64_t *before = m.table + 2 * (t - 1), *link = m.table + 2 * t;
      if (link[0] < before[0] || (link[0] == before[0] && link[1] <= before[1])) refuse("links do not rise");
    }
  }

  void span(MaskNode& m, int64_t j) {
    m.table = static_cast<const int64_t*>(int64_table(1, call[0]).data);
    m.aligned = number();
    for (int64_t b = 0; b < call[0]; ++b)
      if (m.table[b] < 0 || m.table[b] > j)
        refuse("padding has a length of " + std::to_string(m.table[b]) +
               ", expected 0 … j = " + std::to_string(j));
  }

  void blocks(MaskNode& m, int64_t i, int64_t j) {
    const MaskTable& table = take_table(3, 1);
    check_contiguous(table);
    m.block_rows = number(), m.block_columns = number();
    if (m.block_rows < 1 || m.block_columns < 1) refuse("a block is empty");
    m.bytes = static_cast<const uint8_t*>(table.data);
    for (int axis = 0; axis < 3; ++axis) m.size[axis] = table.size[static_cast<size_t>(axis)];
    if (m.size[0] != 1 && m.size[0] != call[1]) refuse("a layout has other heads");
    m.block_rows = clamped(m.block_rows), m.block_columns = clamped(m.block_columns);
    if (m.size[1] < (i + m.block_rows - 1) / m.block_rows ||
        m.size[2] < (j + m.block_columns - 1) / m.block_columns)
      refuse("a layout does not cover the call");
  }

  void dense(MaskNode& m, int64_t i, int64_t j) {
    const MaskTable& table = take_table(4, 1);
    const int64_t expected[4] = {call[0], call[1], i, j};
    m.bytes = static_cast<const uint8_t*>(table.data);
    for (size_t axis = 0; axis < 4; ++axis) {
      if (table.size[axis] < expected[axis]) refuse("a dense mask does not cover the call");
      m.size[axis] = table.size[axis], m.stride[axis] = table.stride[axis];
    }
  }

  void documents(MaskNode& m, int64_t i, int64_t j) {
    const MaskTable& table = int64_table(2, 2);
    m.table = static_cast<const int64_t*>(table.data);
    m.count = table.size[1] - 1;
    const int64_t *rows = m.table, *keys = m.table + m.count + 1;
    if (m.count < 0 || rows[0] || keys[0]) refuse("documents do not begin at 0");
    int64_t most_rows = 0, most_keys = 0;
    for (int64_t t = 0; t < m.count; ++t) {
      if (rows[t + 1] < rows[t] || keys[t + 1] < keys[t]) refuse("a document has a negative length");
      most_rows = std::max(most_rows, rows[t + 1] - rows[t]);
      most_keys = std::max(most_keys, keys[t + 1] - keys[t]);
    }
    if (rows[m.count] != i || keys[m.count] != j) refuse("documents do not sum up");
    if (number()) m.first = node(most_rows, most_keys);
  }
};

MaskProgram::MaskProgram(const std::vector<int64_t>& program, const std::vector<MaskTable>& tables,
                         const int64_t (&call)[4]) {
  if (program.empty()) return;
  nodes_.reserve(program.size());  // a node takes at least one number
  Reader reader{program, tables, call, nodes_};
  reader.node(call[2], call[3]);
  if (reader.position != program.size()) Reader::refuse("it goes on after its end");
}

MaskProgram::~MaskProgram() = default;

Mask MaskProgram::mask() const { return {nodes_.data(), static_cast<int64_t>(nodes_.size())}; }

}  // namespace limelight
