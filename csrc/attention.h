// What the kernels take and give: strided views, the problem, and the entry points of one ISA build.
//
// Letters as everywhere in Limelight: b batch, h query heads, g key/value heads, i query position,
// j key position, d head channels, e value channels. All sizes and strides are int64 and count elements.
#pragma once

#include <cstdint>

namespace limelight {

enum class Dtype : int32_t { f32, bf16, f16 };

// A view of four axes; a stride of 0 repeats (broadcasts) an axis. A view without data is absent.
struct View {
  void* data = nullptr;
  Dtype dtype = Dtype::f32;
  int64_t size[4] = {0, 0, 0, 0};
  int64_t stride[4] = {0, 0, 0, 0};

  explicit operator bool() const { return data != nullptr; }
  int64_t at(int64_t x, int64_t y, int64_t z) const { return x * stride[0] + y * stride[1] + z * stride[2]; }
};

struct MaskNode;

// A compiled mask: nodes[0] is the root; no nodes means that everything is allowed.
struct Mask {
  const MaskNode* nodes = nullptr;
  int64_t count = 0;

  explicit operator bool() const { return count != 0; }
};

// weights = dropout(softmax(cap(scale · q·k) + bias − slope·|p_i − j|, over the keys the mask allows))
struct Problem {
  View query;                     // b h i d, last axis dense
  View key;                       // b g j d, last axis dense
  View value;                     // b g j e, last axis dense
  View bias;                      // b h i j, any strides, or absent
  const float* slopes = nullptr;  // h, or absent: ALiBi
  Mask mask;
  double scale = 1;
  double softcap = 0;  // 0: none
  double dropout = 0;  // chance that a weight is dropped
  uint64_t seed = 0;

  int64_t b() const { return query.size[0]; }
  int64_t h() const { return query.size[1]; }
  int64_t g() const { return key.size[1]; }
  int64_t i() const { return query.size[2]; }
  int64_t j() const { return key.size[2]; }
  int64_t d() const { return query.size[3]; }
  int64_t e() const { return value.size[3]; }
  int64_t group() const { return h() / g(); }  // query heads that share a key head
  // p_i = i + position_shift(): where a query sits among the keys
  int64_t position_shift() const { return j() - i(); }
};

struct Forward {
  Problem problem;
  View out;              // b h i e, last axis dense
  float* lse = nullptr;  // b h i, contiguous; natural logarithm; −inf where nothing is allowed
};

struct Backward {
  Problem problem;
  View out;
  const float* lse = nullptr;
  View grad_out;                    // b h i e, last axis dense
  const float* grad_lse = nullptr;  // b h i contiguous, or absent: dS = P∘(dP − D + dlse)
  View grad_query, grad_key, grad_value;
  View grad_bias;                // float32 in the shape b h i j with stride 0 where bias repeats, or absent
  float* grad_slopes = nullptr;  // h, or absent
};

// What a lens notes in the sweep that computes the output: results that are absent are null. All are
// contiguous and start with b h i.
struct Notes {
  float* max_score = nullptr;
  float* entropy = nullptr;
  float* distance = nullptr;
  float* band = nullptr;
  int64_t band_reach = 0;
  float* columns = nullptr;  // b h i column_count
  const int64_t* column_keys = nullptr;
  int64_t column_count = 0;
  float* top = nullptr;  // b h i top_count, weights; top_keys likewise
  int64_t* top_keys = nullptr;
  int64_t top_count = 0;
};

// What a lens notes of final weights. Sums are taken in float64 into results that come as zeros.
struct Survey {
  const int64_t* pieces = nullptr;  // piece_count + 1 cuts of the queries, at edges of rows of cells: jobs
  int64_t piece_count = 0;          // 0: nothing is asked
  const float* norms = nullptr;     // b g j: ‖v_j‖, for what is weighted by values
  double* received = nullptr;       // b h piece_count j
  int64_t rows = 1, columns = 1;    // cells of the maps
  double *map_sum = nullptr, *value_sum = nullptr;  // b h rows columns
  float *map_max = nullptr, *value_max = nullptr;
  float* top = nullptr;  // b h i top_count: ‖weight · value‖; top_keys likewise
  int64_t* top_keys = nullptr;
  int64_t top_count = 0;
};

struct Look {
  Forward forward;
  Notes notes;
  Survey survey;
};

enum class Curve : int32_t { gelu, gelu_tanh, swiglu };

// A curve of a feed-forward layer, or with `grad` its gradient: out = curve(x), out = grad · curve'(x).
// All dense. swiglu takes rows of 2·width, gate then up, to rows of width.
struct Bend {
  Curve curve = Curve::gelu;
  const float* x = nullptr;
  const float* grad = nullptr;
  float* out = nullptr;
  int64_t rows = 0, width = 0;
};

// y = x·Wᵀ + bias for a few rows; float32, contiguous.
struct FewRows {
  const float* x = nullptr;       // rows channels
  const float* weight = nullptr;  // outputs channels
  const float* bias = nullptr;    // outputs, or none
  float* out = nullptr;           // rows outputs
  int64_t rows = 0, outputs = 0, channels = 0;
};

// A tensor of weights in training; float32, contiguous.
struct Learned {
  float* weight = nullptr;
  const float* grad = nullptr;
  float *first = nullptr, *second = nullptr;  // the running means of the gradient and of its square
  int64_t count = 0;
  int64_t step = 1;  // how many steps it has seen, with this one
};

// One step of AdamW, with gradients times `scale`.
struct Adamw {
  const Learned* all = nullptr;
  int64_t count = 0;
  double rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, decay = 0, scale = 1;
};

// One build of the kernels for one instruction set. Entries that return bool return false if
// they were interrupted.
struct Kernels {
  const char* isa;
  bool (*forward)(const Forward&);
  bool (*backward)(const Backward&);
  bool (*look)(const Look&);
  bool (*bend)(const Bend&);
  bool (*few_rows)(const FewRows&);
  bool (*adamw)(const Adamw&);
  bool (*sum_squares)(const Learned* all, int64_t count, double& total);  // of the gradients
  // The two ceilings of the machine: `operations` gets how many were done, in multiply-adds counted as two.
  bool (*multiply_add)(int threads, double& operations);
  bool (*read_memory)(int threads, const float* from, int64_t floats);
};

}  // namespace limelight
