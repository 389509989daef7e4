// The program that ops/masks/ writes, and the nodes that the kernels evaluate.
#pragma once

#include <cstdint>
#include <vector>

#include "masks/node.h"

namespace limelight {

// A tensor that a mask program refers to.
struct MaskTable {
  const void* data;
  int64_t element;  // bytes per element: 8 (int64) or 1 (bool)
  std::vector<int64_t> size, stride;
};

// Reads a program into nodes, which it owns.
class MaskProgram {
 public:
  // Throws std::invalid_argument if the program does not fit its tables or the call (b h i j).
  MaskProgram(const std::vector<int64_t>& program, const std::vector<MaskTable>& tables, const int64_t (&call)[4]);
  ~MaskProgram();
  MaskProgram(const MaskProgram&) = delete;
  MaskProgram& operator=(const MaskProgram&) = delete;

  Mask mask() const;

 private:
  std::vector<MaskNode> nodes_;
};

}  // namespace limelight
