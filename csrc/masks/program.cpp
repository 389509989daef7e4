#include "masks/program.h"

#include <algorithm>
#include <stdexcept>

#include "masks/rules.h"

namespace limelight {
namespace {

// Rules are evaluated by recursion, also on the small stacks of worker threads.
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
  const int64_t which = number();
  if (which < 0 || which >= static_cast<int64_t>(tables_.size())) refuse("a table is missing");
  const MaskTable& table = tables_[static_cast<size_t>(which)];
  if (table.size.size() != axes || table.element != element) refuse("a table has another form");
  return table;
}

const MaskTable& MaskReader::contiguous_table(size_t axes, int64_t element) {
  const MaskTable& table = this->table(axes, element);
  int64_t dense = 1;
  bool packed = true;
  for (size_t axis = axes; axis-- > 0; dense *= table.size[axis])
    packed &= table.size[axis] == 1 || table.stride[axis] == dense;
  if (!packed && dense) refuse("a table is not contiguous");
  return table;
}

const MaskTable& MaskReader::int64_table(size_t axes, int64_t first) {
  const MaskTable& table = contiguous_table(axes, 8);
  if (table.size[0] < first) refuse("a table is too short");
  return table;
}

const MaskNode* MaskReader::rule(const Extent& x) {
  if (++depth_ > kMaxDepth)
    throw std::invalid_argument("the mask nests more than " + std::to_string(kMaxDepth) + " rules");
  nodes_.push_back(MaskNode{});
  MaskNode& m = nodes_.back();  // reserved: references stay valid
  m.rule = static_cast<Rule>(number());
  if (!LIMELIGHT_ISA::is_rule(m.rule)) refuse("an unknown rule");
  LIMELIGHT_ISA::with_class(m.rule, [&]<class R>(R) { R::read(*this, m, x); });
  --depth_;
  return &m;
}

void MaskReader::check_end() const {
  if (position_ != program_.size()) refuse("it goes on after its end");
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
