// The inputs and outputs of an attention call.
//
// Letters as everywhere in Limelight: b batch, h query heads, g key/value heads, i query position,
// j key position, d head channels, e value channels.
#pragma once

#include "masks/node.h"
#include "view.h"

namespace limelight {

// scores = cap(scale · q·k) + bias − slope·|p_i − j|, over the keys the mask allows
// weights = dropout(exp(scores − lse))
//
// where lse is the log-sum-exp of a row's scores and its sink, unless the caller provides it.
struct Problem {
  View query;                     // b h i d, last axis dense
  View key;                       // b g j d, last axis dense
  View value;                     // b g j e, last axis dense
  View bias;                      // b h i j, any strides, or absent
  const float* slopes = nullptr;  // h, or absent: ALiBi
  const float* sinks = nullptr;   // h, or absent: the score of a key without value
  const double* lse = nullptr;    // b h i contiguous, or absent: normalises the rows in place of their own
  Mask mask;
  double scale = 1;
  double softcap = 0;  // 0: none
  double dropout = 0;  // probability that a weight is dropped
  uint64_t seed = 0;

  int64_t b() const { return query.size[0]; }
  int64_t h() const { return query.size[1]; }
  int64_t g() const { return key.size[1]; }
  int64_t i() const { return query.size[2]; }
  int64_t j() const { return key.size[2]; }
  int64_t d() const { return query.size[3]; }
  int64_t e() const { return value.size[3]; }
  int64_t group() const { return h() / g(); }  // query heads that share a key head
  // p_i = i + position_shift(): the position of query i among the keys
  int64_t position_shift() const { return j() - i(); }
};

struct Forward {
  Problem problem;
  View out;              // b h i e, last axis dense; float32 or the type of the query
  float* lse = nullptr;  // b h i, contiguous; natural logarithm; −inf where no key is allowed
  // b h i, or absent: a row's own lse in two parts, which stay exact where scores are huge:
  // lse·log2(e) = row_max + log2(row_sum)
  float *row_max = nullptr, *row_sum = nullptr;
};

struct Backward {
  Problem problem;
  // b h i e, last axis dense, float32 whatever the query's dtype: Σ_e out·grad_out is subtracted from numbers of
  // its own size, and the rounding of a half type would be most of what remains
  View out, grad_out;
  const float* lse = nullptr;
  // b h i contiguous, or absent: dS = P∘(dP − D + dlse), or P∘dP where the problem has an lse
  const float* grad_lse = nullptr;
  View grad_query, grad_key, grad_value;
  View grad_bias;                // float32, b h i j with stride 0 where the bias broadcasts, or absent
  float* grad_slopes = nullptr;  // h, or absent
  float* grad_sinks = nullptr;   // h, or absent
};

}  // namespace limelight
