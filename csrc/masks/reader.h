// The program of a mask as its rules read it.
//
// A mask arrives as whole numbers in prefix order and a list of tables. The file of a rule says what follows its
// number: <t> is the place of a table in the list, <child> a rule.
#pragma once

#include <string>
#include <vector>

#include "masks/program.h"

namespace limelight {

class MaskReader {
 public:
  // `nodes` has room for as many as the program has numbers: they point to one another.
  MaskReader(const std::vector<int64_t>& program, const std::vector<MaskTable>& tables,
             std::vector<MaskNode>& nodes)
      : program_(program), tables_(tables), nodes_(nodes) {}

  [[noreturn]] static void refuse(const std::string& why);

  int64_t number();
  // A number that may be "no limit".
  int64_t limit();
  const MaskTable& table(size_t axes, int64_t element);
  const MaskTable& contiguous_table(size_t axes, int64_t element);
  // A contiguous table of int64, at least `first` long.
  const MaskTable& int64_table(size_t axes, int64_t first);
  // The next rule, for as many queries and keys as the extent has (inside documents: those of the longest).
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
