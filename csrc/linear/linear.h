// Linear maps and activations of a feed-forward layer; float32, contiguous.
#pragma once

#include <cstdint>

namespace limelight {

// y = x·Wᵀ + bias where x has few rows.
struct SkinnyGemm {
  const float* x = nullptr;       // rows channels
  const float* weight = nullptr;  // outputs channels
  const float* bias = nullptr;    // outputs, or absent
  float* out = nullptr;           // rows outputs
  int64_t rows = 0, outputs = 0, channels = 0;
};

enum class ActivationKind : int32_t { gelu, gelu_tanh, swiglu };

// out = f(x), or with `grad` out = grad · f'(x). swiglu maps rows of 2·width, gate then up, to rows of width.
struct Activation {
  ActivationKind kind = ActivationKind::gelu;
  const float* x = nullptr;
  const float* grad = nullptr;
  float* out = nullptr;
  int64_t rows = 0, width = 0;
};

}  // namespace limelight
