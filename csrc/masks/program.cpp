#include "masks/program.h"

#include <algorithm>
#include <stdexcept>

#include "masks/rules.h"

namespace limelight {
namespace {

// Rules are evaluated recursively, on the small stacks of worker threads too.
constexpr int kMaxDepth = 256;

}  // namespace

void MaskReader::refuse(const std::string& why) {
  throw std::invalid_argument("the mask program is damaged: " + why);
}

int64_t MaskReader::number() {
  if (position_ >= program_.size()) refuse("it ends early");
  return program_[position_++];
}

int64_t MaskReader::limit() { return std::clamp(number(), -kUnlimited, kUnlimited); }

const MaskTable& MaskReader::table(size_t axes, int64_t element) {
  const int64_t index = number();
  if (index < 0 || index >= static_cast<int64_t>(tables_.size()))
    refuse("it refers to table " + std::to_string(index) + " of " + std::to_string(tables_.size()));
  const MaskTable& table = tables_[static_cast<size_t>(index)];
  if (table.size.size() != axes || table.element != element)
    refuse("table " + std::to_string(index) + " has " + std::to_string(table.size.size()) + " axes of " +
           std::to_string(table.element) + "-byte elements, expected " + std::to_string(axes) + " of " +
           std::to_string(element));
  return table;
}

const MaskTable& MaskReader::contiguous_table(size_t axes, int64_t element) {
  const MaskTable& table = this->table(axes, element);
  int64_t elements = 1;
  bool contiguous = true;
  for (size_t axis = axes; axis-- > 0; elements *= table.size[axis])
    contiguous &= table.size[axis] == 1 || table.stride[axis] == elements;
  if (!contiguous && elements) refuse("a table is not contiguous");
  return table;
}

const MaskTable& MaskReader::int64_table(size_t axes, int64_t min_length) {
  const MaskTable& table = contiguous_table(axes, 8);
  if (table.size[0] < min_length)
    refuse("a table has length " + std::to_string(table.size[0]) + ", expected at least " +
           std::to_string(min_length));
  return table;
}

const MaskNode* MaskReader::rule(const Extent& x) {
  if (++depth_ > kMaxDepth)
    throw std::invalid_argument("the mask nests more than " + std::to_string(kMaxDepth) + " rules");
  nodes_.push_back(MaskNode{});
  MaskNode& m = nodes_.back();  // stays valid: the capacity is reserved
  const int64_t code = number();
  m.rule = static_cast<Rule>(code);
  if (!LIMELIGHT_ISA::is_rule(m.rule)) refuse("there is no rule " + std::to_string(code));
  LIMELIGHT_ISA::dispatch_rule(m.rule, [&]<class R>(R) { R::read(*this, m, x); });
  --depth_;
  return &m;
}

void MaskReader::check_end() const {
  if (position_ != program_.size())
    refuse("its rules end after " + std::to_string(position_) + " of " + std::to_string(program_.size()) +
           " numbers");
}

MaskProgram::MaskProgram(const std::vector<int64_t>& program, const std::vector<MaskTable>& tables,
                         const int64_t (&call)[4]) {
  if (program.empty()) return;
  nodes_.reserve(program.size());  // a node takes at least one number
  MaskReader reader(program, tables, nodes_);
  reader.rule({call[0], call[1], call[2], call[3]});
  reader.check_end();
}

MaskProgram::~MaskProgram() = default;

Mask MaskProgram::mask() const { return {nodes_.data(), static_cast<int64_t>(nodes_.size())}; }

}  // namespace limelight
