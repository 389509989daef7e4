// One block of keys in the backward pass: it meets tile after tile of queries, gathers dK and dV, and adds
// to the dQ of each tile.
#pragma once

#include "attention/backward_tile.h"
#include "attention/dropout.h"
#include "attention/scores.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA {

// What every row needs besides its query: as the starts of two products they cost nothing.
struct RowTerms {
  float* minus_lse;    // b h i: −lse·log2(e), and −inf where nothing was allowed
  float* minus_delta;  // b h i: dlse − Σ_e out·grad_out; 0 where lse is given
  float* grad_sums;    // b h i: Σ_j dS gathers here for a bias that is the same for all keys; or null
  float* inverse_sum;  // b h i, or null: then minus_lse is −row_max, and P = 2^(S − row_max) · inverse_sum
};

// Where dQ gathers: float32 rows that are padded to NR columns.
struct GradQuery {
  float* data;
  int64_t stride[3];

  float* row(int64_t b, int64_t h, int64_t i) const {
    return data + b * stride[0] + h * stride[1] + i * stride[2];
  }
};

// Up to kBackwardKeys keys of one key head, and the gradients they gather from tile after tile of queries.
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
  void plain(const Panel& panel, const float* minus_lse, const float* minus_delta);
  void adjusted(const Panel& panel, int64_t h, int64_t i0, const float* minus_lse, const float* minus_delta);
  void gather_bias(const Panel& panel, int64_t h, int64_t i0);
  double slope_of(const Panel& panel, int64_t i0) const;

  const Backward& call_;
  const Problem& p_;
  const RowTerms& terms_;
  const GradQuery& grad_query_;
  const Dropout dropout_;
  const float scale_, cap_;
  const int64_t wide_d_, wide_e_;  // d and e, up to NR
  int64_t b_ = 0, g_ = 0;
  Range keys_{0, 0};
  bool some_ = false;                   // the tile in hand has bits
  const float* inverse_sum_ = nullptr;  // of the tile in hand

  float *key_panels_, *value_panels_;  // keys (times scale·log2 e) and values, upright: panel × channel × NR
  float* key_rows_;                    // keys times scale
  float *grad_key_, *grad_value_;      // dSᵀ·Q, without the scale, and Pᵀ·dO
  float *queries_, *grad_out_;         // the tile's rows
  float* weights_;                     // P of the panel in hand: rows × NR
  float* dropped_;                     // the same after dropout
  float* cap_grad_;                    // and the softcap's derivative there
  float* grad_scores_;                 // dS: panel × kBackwardQueries × NR
  uint64_t* bits_;                     // the mask: row × kBackwardWords
};

inline int64_t KeyBlock::scratch_floats(const Problem& p) {
  const int64_t wide_d = round_up(p.d(), NR), wide_e = round_up(p.e(), NR);
  const int64_t keys = kBackwardKeys * (3 * wide_d + 2 * wide_e), rows = kBackwardQueries * (wide_d + wide_e);
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
      wide_d_(round_up(p_.d(), NR)),
      wide_e_(round_up(p_.e(), NR)) {
  Scratch scratch(scratch_floats(p_));
  const auto take = [&](int64_t floats) { return scratch.take(floats); };
  key_panels_ = take(kBackwardKeys * wide_d_);
  value_panels_ = take(kBackwardKeys * wide_e_);
  key_rows_ = take(kBackwardKeys * wide_d_);
  grad_key_ = take(kBackwardKeys * wide_d_);
  grad_value_ = take(kBackwardKeys * wide_e_);
  queries_ = take(kBackwardQueries * wide_d_);
  grad_out_ = take(kBackwardQueries * wide_e_);
  weights_ = take(kBackwardQueries * NR);
  float* const after_dropout = take(kBackwardQueries * NR);
  dropped_ = p_.dropout > 0 ? after_dropout : weights_;
  cap_grad_ = take(kBackwardQueries * NR);
  grad_scores_ = take(kBackwardQueries * kBackwardKeys);
  bits_ = reinterpret_cast<uint64_t*>(take(kBackwardQueries * kBackwardWords * 2));
}

inline void clean_rows(float* rows, int64_t floats) {
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
      load_row(key + r * p_.key.stride[2], key_rows_ + r * wide_d_, p_.d(), wide_d_, scale_);
  });
  // A masked key has dS = 0, but 0 · NaN would reach dQ. Of a key that is not masked dS itself is NaN.
  if (p_.mask) clean_rows(key_rows_, count * wide_d_);
  std::fill(key_rows_ + count * wide_d_, key_rows_ + padded * wide_d_, 0.0f);
  std::fill(grad_key_, grad_key_ + padded * wide_d_, 0.0f);
  std::fill(grad_value_, grad_value_ + padded * wide_e_, 0.0f);
}

inline void KeyBlock::finish() {
  dispatch_dtype(p_.key.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const View &key = call_.grad_key, &value = call_.grad_value;
    T* key_rows = static_cast<T*>(key.data) + key.at(b_, g_, keys_.low);
    T* value_rows = static_cast<T*>(value.data) + value.at(b_, g_, keys_.low);
    for (int64_t r = 0; r < keys_.high - keys_.low; ++r) {
      store_row(grad_key_ + r * wide_d_, key_rows + r * key.stride[2], p_.d(), scale_);
      store_row(grad_value_ + r * wide_e_, value_rows + r * value.stride[2], p_.e());
    }
  });
}

// The bits of row's keys in this panel, the lowest first; a panel at the end of the keys may be short.
LIMELIGHT_INLINE uint32_t KeyBlock::bits_of(const Panel& panel, int64_t row) const {
  const int64_t first = panel.index * NR, left = keys_.high - keys_.low - first;
  const uint64_t word = some_ ? bits_[row * kBackwardWords + first / kWordKeys] >> (first % kWordKeys) : ~0ull;
  const uint64_t here = left >= NR ? (1ull << NR) - 1 : (1ull << left) - 1;
  return static_cast<uint32_t>(word & here);
}

inline void KeyBlock::read_mask(int64_t h, Range queries) {
  const Extent extent{b_, h, p_.i(), p_.j()};
  for (int64_t i = queries.low; i < queries.high; ++i)
    row_bits(p_.mask.nodes[0], extent, i, keys_.low, keys_.high - keys_.low,
             bits_ + (i - queries.low) * kBackwardWords);
}

// The rows that may see any key of the panel, and those between them.
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

// Meets the queries of a head: rows `queries`, of which the mask leaves `cover`. What the head's slope takes
// from them is added to *slope_sum.
inline void KeyBlock::add(int64_t h, Range queries, Cover cover, double* slope_sum) {
  const int64_t rows = queries.high - queries.low, i0 = queries.low;
  const int64_t panels = (keys_.high - keys_.low + NR - 1) / NR;
  const bool full = (keys_.high - keys_.low) % NR == 0;
  const View &query = p_.query, &grad = call_.grad_out;
  dispatch_dtype(query.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    pack_rows(static_cast<const T*>(query.data) + query.at(b_, h, i0), query.stride[2], rows, p_.d(), wide_d_,
              queries_);
  });
  pack_rows(static_cast<const float*>(grad.data) + grad.at(b_, h, i0), grad.stride[2], rows, p_.e(), wide_e_,
            grad_out_);
  some_ = cover == Cover::some;
  if (some_) {
    read_mask(h, queries);
    clean_rows(queries_, rows * wide_d_);  // for dK, as the keys for dQ: a query with NaN has lse = NaN
  }

  const int64_t first = (b_ * p_.h() + h) * p_.i() + i0;
  const float *minus_lse = terms_.minus_lse + first, *minus_delta = terms_.minus_delta + first;
  inverse_sum_ = terms_.inverse_sum ? terms_.inverse_sum + first : nullptr;
  const bool shape = p_.bias || p_.slopes || cap_ > 0 || p_.dropout > 0 || inverse_sum_;
  Range spans[kBackwardPanels];
  for (int64_t t = 0; t < panels; ++t) {
    const Panel panel{t, some_ ? span_of(t, rows) : Range{0, rows}, some_ || (t + 1 == panels && !full)};
    float* scores = grad_scores_ + t * kBackwardQueries * NR;
    spans[t] = panel.rows;
    std::fill(scores, scores + panel.rows.low * NR, 0.0f);
    std::fill(scores + panel.rows.high * NR, scores + rows * NR, 0.0f);
    if (panel.rows.low == panel.rows.high) continue;
    if (shape) {
      adjusted(panel, h, i0, minus_lse, minus_delta);
      if (call_.grad_bias) gather_bias(panel, h, i0);
      if (call_.grad_slopes) *slope_sum += slope_of(panel, i0);
      if (cap_ > 0)
        for (int64_t x = panel.rows.low * NR; x < panel.rows.high * NR; x += W)
          store(scores + x, load(scores + x) * load(cap_grad_ + x));
    } else {
      plain(panel, minus_lse, minus_delta);
    }
    add_outer(panel.rows, wide_e_, dropped_, grad_out_, grad_value_ + t * NR * wide_e_);
    add_outer(panel.rows, wide_d_, scores, queries_, grad_key_ + t * NR * wide_d_);
  }
  add_inner({0, rows}, wide_d_, spans, panels, grad_scores_, key_rows_, grad_query_.row(b_, h, i0),
            grad_query_.stride[2]);
}

// P and dS of a panel when a score is nothing but scale · q·k.
inline void KeyBlock::plain(const Panel& panel, const float* minus_lse, const float* minus_delta) {
  const float* keys = key_panels_ + panel.index * NR * p_.d();
  const float* values = value_panels_ + panel.index * NR * p_.e();
  float *weights = weights_, *scores = grad_scores_ + panel.index * kBackwardQueries * NR;
  if (panel.masked) {
    dots(panel.rows, p_.d(), queries_, wide_d_, keys, minus_lse, [&](int64_t r, int half, vf sum) {
      store(weights + r * NR + half * W, keep_lanes(exp2(sum), bits_of(panel, r), half));
    });
    // The mask again: a forbidden value may be infinite, and 0 · ∞ is not 0.
    dots(panel.rows, p_.e(), grad_out_, wide_e_, values, minus_delta, [&](int64_t r, int half, vf sum) {
      const vf weight = load(weights + r * NR + half * W);
      store(scores + r * NR + half * W, keep_lanes(weight * sum, bits_of(panel, r), half));
    });
  } else {
    dots(panel.rows, p_.d(), queries_, wide_d_, keys, minus_lse,
         [&](int64_t r, int half, vf sum) { store(weights + r * NR + half * W, exp2(sum)); });
    dots(panel.rows, p_.e(), grad_out_, wide_e_, values, minus_delta, [&](int64_t r, int half, vf sum) {
      store(scores + r * NR + half * W, load(weights + r * NR + half * W) * sum);
    });
  }
}

// P and dS of a panel with everything that can happen to a score on its way.
inline void KeyBlock::adjusted(const Panel& panel, int64_t h, int64_t i0, const float* minus_lse,
                               const float* minus_delta) {
  const int64_t j0 = keys_.low + panel.index * NR, head = b_ * p_.h() + h;
  const bool drops = p_.dropout > 0;
  float* scores = grad_scores_ + panel.index * kBackwardQueries * NR;
  dots(panel.rows, p_.d(), queries_, wide_d_, key_panels_ + panel.index * NR * p_.d(), nullptr,
       [&](int64_t r, int half, vf sum) { store(weights_ + r * NR + half * W, sum); });
  for (int64_t r = panel.rows.low; r < panel.rows.high; ++r) {
    float* row = weights_ + r * NR;
    const uint32_t bits = bits_of(panel, r), place = dropout_.row(head, i0 + r);
    if (cap_ > 0) {
      cap_row(p_, NR, row);
      for (int half = 0; half < 2; ++half) {
        const vf bent = load(row + half * W) * (static_cast<float>(kLn2) / cap_);
        // A forbidden key may be infinite or NaN: its slope is 0.
        store(cap_grad_ + r * NR + half * W, keep_lanes(1.0f - bent * bent, bits, half));
      }
    }
    shift_row(p_, b_, h, i0 + r, j0, imin(NR, keys_.high - j0), row);
    for (int half = 0; half < 2; ++half) {
      vf rise = load(row + half * W) + minus_lse[r];
      if (inverse_sum_) rise = select(rise > 0.0f, vf{}, rise);  // huge scores are rounded: no weight exceeds 1
      vf weight = exp2(rise);
      if (inverse_sum_) weight *= inverse_sum_[r];
      weight = keep_lanes(weight, bits, half);
      store(row + half * W, weight);
      if (drops)
        store(dropped_ + r * NR + half * W,
              (vf)((vi)(weight * dropout_.grow) & dropout_.keep(place, j0 + half * W)));
    }
  }

  const auto grad_scores = [&](int64_t r, int half, vf sum) {
    const int64_t at = r * NR + half * W;
    if (drops) {
      const vi keep = dropout_.keep(dropout_.row(head, i0 + r), j0 + half * W);
      sum = (vf)((vi)(sum * dropout_.grow) & keep);
    }
    const vf grad = load(weights_ + at) * (sum + minus_delta[r]);
    store(scores + at, panel.masked ? keep_lanes(grad, bits_of(panel, r), half) : grad);
  };
  dots(panel.rows, p_.e(), grad_out_, wide_e_, value_panels_ + panel.index * NR * p_.e(), nullptr, grad_scores);
}

// Adds dS to the gradient of the bias, whose axes may repeat (stride 0), or to the sums of the rows.
inline void KeyBlock::gather_bias(const Panel& panel, int64_t h, int64_t i0) {
  const View& grad = call_.grad_bias;
  const int64_t j0 = panel.index * NR, keys = imin(NR, keys_.high - keys_.low - j0), step = grad.stride[3];
  const float* scores = grad_scores_ + panel.index * kBackwardQueries * NR;
  for (int64_t r = panel.rows.low; r < panel.rows.high; ++r) {
    const float* row = scores + r * NR;
    if (terms_.grad_sums) {
      terms_.grad_sums[(b_ * p_.h() + h) * p_.i() + i0 + r] += hsum(load(row) + load(row + W));
      continue;
    }
    float* into = static_cast<float*>(grad.data) + grad.at(b_, h, i0 + r) + (keys_.low + j0) * step;
    for (int64_t t = 0; t < keys; ++t) into[t * step] += row[t];
  }
}

// −Σ dS·|p_i − j|: what a head's slope takes from its scores.
inline double KeyBlock::slope_of(const Panel& panel, int64_t i0) const {
  const int64_t j0 = keys_.low + panel.index * NR, shift = p_.position_shift();
  const float* scores = grad_scores_ + panel.index * kBackwardQueries * NR;
  double sum = 0;
  for (int64_t r = panel.rows.low; r < panel.rows.high; ++r) {
    const vf low = load(scores + r * NR) * distances(i0 + r + shift - j0);
    const vf high = load(scores + r * NR + W) * distances(i0 + r + shift - j0 - W);
    sum -= hsum(low + high);
  }
  return sum;
}

}  // namespace limelight::LIMELIGHT_ISA
