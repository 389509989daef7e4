// The table of the kernels of one instruction set.
#pragma once

#include "attention/problem.h"
#include "lens/statistics.h"
#include "linear/linear.h"
#include "linear/optimizer.h"

namespace limelight {

// Entries return false if Ctrl-C interrupted them.
struct Kernels {
  const char* isa;
  int64_t panel;  // keys and value channels are padded to a multiple of this
  bool (*forward)(const Forward&);
  bool (*backward)(const Backward&);
  bool (*lens_forward)(const LensForward&);
  bool (*activation)(const Activation&);
  bool (*skinny_gemm)(const SkinnyGemm&);
  bool (*adamw)(const AdamWStep&);
  bool (*sum_squares)(const Parameter* parameters, int64_t count, double& total);  // of the gradients
};

}  // namespace limelight
