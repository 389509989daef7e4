// A strided view of a tensor, as every kernel takes it.
#pragma once

#include <cstdint>

namespace limelight {

enum class Dtype : int32_t { f32, bf16, f16 };

// Four axes; sizes and strides count elements. A stride of 0 broadcasts an axis. Null data means an absent tensor.
struct View {
  void* data = nullptr;
  Dtype dtype = Dtype::f32;
  int64_t size[4] = {0, 0, 0, 0};
  int64_t stride[4] = {0, 0, 0, 0};

  explicit operator bool() const { return data != nullptr; }
  int64_t at(int64_t x, int64_t y, int64_t z) const { return x * stride[0] + y * stride[1] + z * stride[2]; }
};

}  // namespace limelight
