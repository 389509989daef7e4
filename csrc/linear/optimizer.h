// The parameters and settings of an optimiser step.
#pragma once

#include <cstdint>

namespace limelight {

// A tensor being trained; float32, contiguous.
struct Parameter {
  float* weight = nullptr;
  const float* grad = nullptr;
  float *mean = nullptr, *square = nullptr;  // running means of the gradient and of its square
  int64_t count = 0;
  int64_t step = 1;  // of the bias correction: 1 at the first update
};

// One AdamW update; gradients are multiplied by `grad_scale` first.
struct AdamWStep {
  const Parameter* parameters = nullptr;
  int64_t count = 0;
  double learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0, grad_scale = 1;
};

}  // namespace limelight
