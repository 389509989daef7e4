// The reader of a mask program, with which each rule reads its arguments.
//
// A program is a list of integers in prefix order and a list of tables. The file of a rule says what follows its
// code: <t> is the index of a table, <child> a rule.
#pragma once

#include <string>
#include <vector>

#include "masks/program.h"

namespace limelight {

class MaskReader {
 public:
  // `nodes` must have capacity for one node per number of the program, because nodes point to one another.
  MaskReader(const std::vector<int64_t>& program, const std::vector<MaskTable>& tables,
             std::vector<MaskNode>& nodes)
      : program_(program), tables_(tables), nodes_(nodes) {}

  [[noreturn]] static void refuse(const std::string& why);

  int64_t number();
  // A number that may be "no limit".
  int64_t limit();
  const MaskTable& table(size_t axes, int64_t element);
  const MaskTable& contiguous_table(size_t axes, int64_t element);
  // A contiguous table of int64 whose first axis has at least `min_length` entries.
  const MaskTable& int64_table(size_t axes, int64_t min_length);
  // The next rule, checked for the queries and keys of the extent (inside Documents: those of the longest
  // document).
  const MaskNode* rule(const Extent& x);

  void check_end() const;

 private:
  const std::vector<int64_t>& program_;
  const std::vector<MaskTable>& tables_;
  std::vector<MaskNode>& nodes_;
  size_t position_ = 0;
  int depth_ = 0;
};

}  // namespace limelight
