// One block of keys in the backward pass: accumulates dK and dV over tiles of queries, and adds to the dQ of each
// tile.
#pragma once

#include "attention/backward_tile.h"
#include "attention/dropout.h"
#include "attention/scores.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA {

// The terms of each row. minus_lse and minus_delta are the initial values of the sums S and dP, where they cost
// nothing.
struct RowTerms {
  float* minus_lse;    // b h i: −lse·log2(e), and −inf where no key is allowed
  float* minus_delta;  // b h i: dlse − Σ_e out·grad_out; 0 where the problem has an lse
  float* grad_sums;    // b h i: Σ_j dS, for a bias that is the same for all keys; or null
  float* inverse_sum;  // b h i, or null; if set, minus_lse is −row_max, and P = 2^(S − row_max) · inverse_sum
};

// The accumulator of dQ: float32 rows padded to a multiple of NR columns.
struct GradQuery {
  float* data;
  int64_t stride[3];

  float* row(int64_t b, int64_t h, int64_t i) const {
    return data + b * stride[0] + h * stride[1] + i * stride[2];
  }
};

// Up to kBackwardKeys keys of one key head, and their gradients accumulated over tiles of queries.
class KeyBlock {
 public:
  KeyBlock(const Backward& call, const RowTerms& terms, const GradQuery& grad_query);
  static int64_t scratch_floats(const Problem& p);

  void begin(int64_t b, int64_t g, Range keys);
  void add(int64_t h, Range queries, Cover cover, double* slope_sum);
  void finish();

 private:
  struct Panel {
    int64_t index;
    Range rows;
    bool masked;
  };

  uint32_t bits_of(const Panel& panel, int64_t row) const;
  void read_mask(int64_t h, Range queries);
  Range span_of(int64_t panel, int64_t rows) const;
  void compute_plain(const Panel& panel, const float* minus_lse, const float* minus_delta);
  void compute_adjusted(const Panel& panel, int64_t h, int64_t i0, const float* minus_lse,
                        const float* minus_delta);
  void add_grad_bias(const Panel& panel, int64_t h, int64_t i0);
  double grad_slope(const Panel& panel, int64_t i0) const;

  const Backward& call_;
  const Problem& p_;
  const RowTerms& terms_;
  const GradQuery& grad_query_;
  const Dropout dropout_;
  const float scale_, cap_;
  const int64_t padded_d_, padded_e_;  // d and e, rounded up to a multiple of NR
  int64_t b_ = 0, g_ = 0;
  Range keys_{0, 0};
  bool has_bits_ = false;               // the mask covers the current tile in part, and bits_ holds it
  const float* inverse_sum_ = nullptr;  // of the current tile

  float *key_panels_, *value_panels_;  // keys (times query_factor) and values, transposed: panel × channel × NR
  float* key_rows_;                    // keys times scale
  float *grad_key_, *grad_value_;      // dSᵀ·Q, without the scale, and Pᵀ·dO
  float *queries_, *grad_out_;         // rows of the current tile
  float* weights_;                     // P of the current panel: rows × NR
  float* dropped_;                     // P after dropout
  float* cap_grad_;                    // the derivative of the softcap
  float* grad_scores_;                 // dS: panel × kBackwardQueries × NR
  uint64_t* bits_;                     // the mask: row × kBackwardWords
};

inline int64_t KeyBlock::scratch_floats(const Problem& p) {
  const int64_t padded_d = round_up(p.d(), NR), padded_e = round_up(p.e(), NR);
  const int64_t keys = kBackwardKeys * (3 * padded_d + 2 * padded_e),
                rows = kBackwardQueries * (padded_d + padded_e);
  const int64_t tile = kBackwardQueries * (3 * NR + kBackwardKeys), bits = kBackwardQueries * kBackwardWords * 2;
  return keys + rows + tile + bits;
}

inline KeyBlock::KeyBlock(const Backward& call, const RowTerms& terms, const GradQuery& grad_query)
    : call_(call),
      p_(call.problem),
      terms_(terms),
      grad_query_(grad_query),
      dropout_(call.problem),
      scale_(static_cast<float>(p_.scale)),
      cap_(static_cast<float>(p_.softcap)),
      padded_d_(round_up(p_.d(), NR)),
      padded_e_(round_up(p_.e(), NR)) {
  Scratch scratch(scratch_floats(p_));
  const auto take = [&](int64_t floats) { return scratch.take(floats); };
  key_panels_ = take(kBackwardKeys * padded_d_);
  value_panels_ = take(kBackwardKeys * padded_e_);
  key_rows_ = take(kBackwardKeys * padded_d_);
  grad_key_ = take(kBackwardKeys * padded_d_);
  grad_value_ = take(kBackwardKeys * padded_e_);
  queries_ = take(kBackwardQueries * padded_d_);
  grad_out_ = take(kBackwardQueries * padded_e_);
  weights_ = take(kBackwardQueries * NR);
  float* const after_dropout = take(kBackwardQueries * NR);
  dropped_ = p_.dropout > 0 ? after_dropout : weights_;
  cap_grad_ = take(kBackwardQueries * NR);
  grad_scores_ = take(kBackwardQueries * kBackwardKeys);
  bits_ = reinterpret_cast<uint64_t*>(take(kBackwardQueries * kBackwardWords * 2));
}

inline void zero_nonfinite(float* rows, int64_t floats) {
  for (int64_t t = 0; t < floats; t += W) store(rows + t, finite_or_zero(load(rows + t)));
}

inline void KeyBlock::begin(int64_t b, int64_t g, Range keys) {
  b_ = b, g_ = g, keys_ = keys;
  const int64_t count = keys.high - keys.low, padded = round_up(count, NR);
  dispatch_dtype(p_.key.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* key = static_cast<const T*>(p_.key.data) + p_.key.at(b, g, keys.low);
    const T* value = static_cast<const T*>(p_.value.data) + p_.value.at(b, g, keys.low);
    pack_panels(key, p_.key.stride[2], count, p_.d(), key_panels_, query_factor(p_));
    pack_panels(value, p_.value.stride[2], count, p_.e(), value_panels_);
    for (int64_t r = 0; r < count; ++r)
      load_row(key + r * p_.key.stride[2], key_rows_ + r * padded_d_, p_.d(), padded_d_, scale_);
  });
  // A masked key has dS = 0, but 0 · NaN would make dQ NaN. For a NaN key that is not masked, dS itself is NaN.
  if (p_.mask) zero_nonfinite(key_rows_, count * padded_d_);
  std::fill(key_rows_ + count * padded_d_, key_rows_ + padded * padded_d_, 0.0f);
  std::fill(grad_key_, grad_key_ + padded * padded_d_, 0.0f);
  std::fill(grad_value_, grad_value_ + padded * padded_e_, 0.0f);
}

inline void KeyBlock::finish() {
  dispatch_dtype(p_.key.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const View &key = call_.grad_key, &value = call_.grad_value;
    T* key_rows = static_cast<T*>(key.data) + key.at(b_, g_, keys_.low);
    T* value_rows = static_cast<T*>(value.data) + value.at(b_, g_, keys_.low);
    for (int64_t r = 0; r < keys_.high - keys_.low; ++r) {
      store_row(grad_key_ + r * padded_d_, key_rows + r * key.stride[2], p_.d(), scale_);
      store_row(grad_value_ + r * padded_e_, value_rows + r * value.stride[2], p_.e());
    }
  });
}

// The mask of a row over the keys of a panel, lowest bit first; the last panel may have fewer than NR keys.
LIMELIGHT_INLINE uint32_t KeyBlock::bits_of(const Panel& panel, int64_t row) const {
  const int64_t first = panel.index * NR, left = keys_.high - keys_.low - first;
  const uint64_t word = has_bits_ ? bits_[row * kBackwardWords + first / kWordKeys] >> (first % kWordKeys) : ~0ull;
  const uint64_t existing = left >= NR ? (1ull << NR) - 1 : (1ull << left) - 1;
  return static_cast<uint32_t>(word & existing);
}

inline void KeyBlock::read_mask(int64_t h, Range queries) {
  const Extent extent{b_, h, p_.i(), p_.j()};
  for (int64_t i = queries.low; i < queries.high; ++i)
    row_bits(p_.mask.nodes[0], extent, i, keys_.low, keys_.high - keys_.low,
             bits_ + (i - queries.low) * kBackwardWords);
}

// The smallest range of rows that holds all those that may see a key of the panel.
inline Range KeyBlock::span_of(int64_t panel, int64_t rows) const {
  const Panel whole{panel, {0, rows}, true};
  int64_t low = 0, high = rows;
  while (low < high && !bits_of(whole, low)) ++low;
  while (low < high && !bits_of(whole, high - 1)) --high;
  return {low, high};
}

LIMELIGHT_INLINE vf keep_lanes(vf x, uint32_t bits, int half) {
  const vi lane = splat_i(1) << iota();
  return (vf)((vi)x & ((splat_i(static_cast<int32_t>(bits >> (half * W))) & lane) != 0));
}

// Adds the gradients of a tile of queries of head h, of which the mask leaves `cover`. The tile's share of the
// gradient of the head's slope is added to *slope_sum.
inline void KeyBlock::add(int64_t h, Range queries, Cover cover, double* slope_sum) {
  const int64_t rows = queries.high - queries.low, i0 = queries.low;
  const int64_t panels = (keys_.high - keys_.low + NR - 1) / NR;
  const bool full = (keys_.high - keys_.low) % NR == 0;
  const View &query = p_.query, &grad = call_.grad_out;
  dispatch_dtype(query.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    pack_rows(static_cast<const T*>(query.data) + query.at(b_, h, i0), query.stride[2], rows, p_.d(), padded_d_,
              queries_);
  });
  pack_rows(static_cast<const float*>(grad.data) + grad.at(b_, h, i0), grad.stride[2], rows, p_.e(), padded_e_,
            grad_out_);
  has_bits_ = cover == Cover::some;
  if (has_bits_) {
    read_mask(h, queries);
    zero_nonfinite(queries_, rows * padded_d_);  // for dK, as the keys for dQ; a query with NaN has an lse of NaN
  }

  const int64_t first = (b_ * p_.h() + h) * p_.i() + i0;
  const float *minus_lse = terms_.minus_lse + first, *minus_delta = terms_.minus_delta + first;
  inverse_sum_ = terms_.inverse_sum ? terms_.inverse_sum + first : nullptr;
  const bool adjusted = has_adjustments(p_) || p_.dropout > 0 || inverse_sum_;
  Range spans[kBackwardPanels];
  for (int64_t t = 0; t < panels; ++t) {
    const Panel panel{t, has_bits_ ? span_of(t, rows) : Range{0, rows}, has_bits_ || (t + 1 == panels && !full)};
    float* grad_scores = grad_scores_ + t * kBackwardQueries * NR;
    spans[t] = panel.rows;
    std::fill(grad_scores, grad_scores + panel.rows.low * NR, 0.0f);
    std::fill(grad_scores + panel.rows.high * NR, grad_scores + rows * NR, 0.0f);
    if (panel.rows.low == panel.rows.high) continue;
    if (adjusted) {
      compute_adjusted(panel, h, i0, minus_lse, minus_delta);
      if (call_.grad_bias) add_grad_bias(panel, h, i0);
      if (call_.grad_slopes) *slope_sum += grad_slope(panel, i0);
      if (cap_ > 0)
        for (int64_t x = panel.rows.low * NR; x < panel.rows.high * NR; x += W)
          store(grad_scores + x, load(grad_scores + x) * load(cap_grad_ + x));
    } else {
      compute_plain(panel, minus_lse, minus_delta);
    }
    add_outer(panel.rows, padded_e_, dropped_, grad_out_, grad_value_ + t * NR * padded_e_);
    add_outer(panel.rows, padded_d_, grad_scores, queries_, grad_key_ + t * NR * padded_d_);
  }
  add_inner({0, rows}, padded_d_, spans, panels, grad_scores_, key_rows_, grad_query_.row(b_, h, i0),
            grad_query_.stride[2]);
}

// P and dS of a panel whose scores are scale · q·k alone.
inline void KeyBlock::compute_plain(const Panel& panel, const float* minus_lse, const float* minus_delta) {
  const float* keys = key_panels_ + panel.index * NR * p_.d();
  const float* values = value_panels_ + panel.index * NR * p_.e();
  float *weights = weights_, *grad_scores = grad_scores_ + panel.index * kBackwardQueries * NR;
  if (panel.masked) {
    dot_panel(panel.rows, p_.d(), queries_, padded_d_, keys, minus_lse, [&](int64_t r, int half, vf sum) {
      store(weights + r * NR + half * W, keep_lanes(exp2(sum), bits_of(panel, r), half));
    });
    // Masked again, because a forbidden value may be infinite, and 0 · ∞ is not 0.
    dot_panel(panel.rows, p_.e(), grad_out_, padded_e_, values, minus_delta, [&](int64_t r, int half, vf sum) {
      const vf weight = load(weights + r * NR + half * W);
      store(grad_scores + r * NR + half * W, keep_lanes(weight * sum, bits_of(panel, r), half));
    });
  } else {
    dot_panel(panel.rows, p_.d(), queries_, padded_d_, keys, minus_lse,
              [&](int64_t r, int half, vf sum) { store(weights + r * NR + half * W, exp2(sum)); });
    dot_panel(panel.rows, p_.e(), grad_out_, padded_e_, values, minus_delta, [&](int64_t r, int half, vf sum) {
      store(grad_scores + r * NR + half * W, load(weights + r * NR + half * W) * sum);
    });
  }
}

// P and dS of a panel with softcap, bias, slopes, dropout or inverse_sum. dS is that of the scores after the
// softcap.
inline void KeyBlock::compute_adjusted(const Panel& panel, int64_t h, int64_t i0, const float* minus_lse,
                                       const float* minus_delta) {
  const int64_t j0 = keys_.low + panel.index * NR, head = b_ * p_.h() + h;
  const bool drops = p_.dropout > 0;
  float* grad_scores = grad_scores_ + panel.index * kBackwardQueries * NR;
  dot_panel(panel.rows, p_.d(), queries_, padded_d_, key_panels_ + panel.index * NR * p_.d(), nullptr,
            [&](int64_t r, int half, vf sum) { store(weights_ + r * NR + half * W, sum); });
  for (int64_t r = panel.rows.low; r < panel.rows.high; ++r) {
    float* row = weights_ + r * NR;
    const uint32_t bits = bits_of(panel, r), row_seed = dropout_.row_seed(head, i0 + r);
    if (cap_ > 0) {
      cap_row(p_, NR, row);
      for (int half = 0; half < 2; ++half) {
        const vf tanh = load(row + half * W) * (static_cast<float>(kLn2) / cap_);
        // Masked, because a forbidden key may be infinite or NaN.
        store(cap_grad_ + r * NR + half * W, keep_lanes(1.0f - tanh * tanh, bits, half));
      }
    }
    add_bias_and_slopes(p_, b_, h, i0 + r, j0, imin(NR, keys_.high - j0), row);
    for (int half = 0; half < 2; ++half) {
      vf exponent = load(row + half * W) + minus_lse[r];
      // Huge scores are rounded; no exponential may exceed 1.
      if (inverse_sum_) exponent = select(exponent > 0.0f, vf{}, exponent);
      vf weight = exp2(exponent);
      if (inverse_sum_) weight *= inverse_sum_[r];
      weight = keep_lanes(weight, bits, half);
      store(row + half * W, weight);
      if (drops)
        store(dropped_ + r * NR + half * W,
              (vf)((vi)(weight * dropout_.scale) & dropout_.keep(row_seed, j0 + half * W)));
    }
  }

  const auto store_grad_scores = [&](int64_t r, int half, vf sum) {
    const int64_t at = r * NR + half * W;
    if (drops) {
      const vi keep = dropout_.keep(dropout_.row_seed(head, i0 + r), j0 + half * W);
      sum = (vf)((vi)(sum * dropout_.scale) & keep);
    }
    const vf grad = load(weights_ + at) * (sum + minus_delta[r]);
    store(grad_scores + at, panel.masked ? keep_lanes(grad, bits_of(panel, r), half) : grad);
  };
  dot_panel(panel.rows, p_.e(), grad_out_, padded_e_, value_panels_ + panel.index * NR * p_.e(), nullptr,
            store_grad_scores);
}

// Adds dS to the gradient of the bias, whose axes may broadcast (stride 0), or to the sums of the rows.
inline void KeyBlock::add_grad_bias(const Panel& panel, int64_t h, int64_t i0) {
  const View& grad = call_.grad_bias;
  const int64_t j0 = panel.index * NR, keys = imin(NR, keys_.high - keys_.low - j0), step = grad.stride[3];
  const float* grad_scores = grad_scores_ + panel.index * kBackwardQueries * NR;
  for (int64_t r = panel.rows.low; r < panel.rows.high; ++r) {
    const float* row = grad_scores + r * NR;
    if (terms_.grad_sums) {
      terms_.grad_sums[(b_ * p_.h() + h) * p_.i() + i0 + r] += hsum(load(row) + load(row + W));
      continue;
    }
    float* into = static_cast<float*>(grad.data) + grad.at(b_, h, i0 + r) + (keys_.low + j0) * step;
    for (int64_t t = 0; t < keys; ++t) into[t * step] += row[t];
  }
}

// −Σ dS·|p_i − j|: the panel's share of the gradient of a head's slope.
inline double KeyBlock::grad_slope(const Panel& panel, int64_t i0) const {
  const int64_t j0 = keys_.low + panel.index * NR, shift = p_.position_shift();
  const float* grad_scores = grad_scores_ + panel.index * kBackwardQueries * NR;
  double sum = 0;
  for (int64_t r = panel.rows.low; r < panel.rows.high; ++r) {
    const vf low = load(grad_scores + r * NR) * distances(i0 + r + shift - j0);
    const vf high = load(grad_scores + r * NR + W) * distances(i0 + r + shift - j0 - W);
    sum -= hsum(low + high);
  }
  return sum;
}

}  // namespace limelight::LIMELIGHT_ISA
