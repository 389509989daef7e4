// out = softmax(Q·Kᵀ)·V without storing the scores: tiles of queries stream over tiles of keys with a running
// maximum and sum (Milakov & Gimelshein 2018; Dao et al. 2022).
#include "attention/forward_plan.h"
#include "attention/scores.h"
#include "attention/segments.h"
#include "entry_points.h"
#include "lens/pooled_stats.h"
#include "lens/row_stats.h"

namespace limelight::LIMELIGHT_ISA {
namespace {

constexpr float kHeadroom = 16;  // log2 of the largest weight before division: sums stay far from overflow

// Some queries of some heads that share a key head, over all their keys. `Lens` is RowRecorder or NoLens.
template <class Lens>
class Job {
 public:
  Job(const ForwardPlan& plan, int64_t b, int64_t g, int64_t chunk, Segment rows, Lens lens,
      PooledAccumulator* pooled = nullptr)
      : plan_(plan),
        p_(plan.p),
        b_(b),
        g_(g),
        rows_(rows),
        scratch_(plan.scratch_floats()),
        lens_(lens),
        pooled_(pooled) {
    first_head_ = g * p_.group() + chunk * plan.heads_per_job;
    heads_ = imin(plan.heads_per_job, (g + 1) * p_.group() - first_head_);
    tiles_per_head_ = (rows.end - rows.begin + kForwardQueries - 1) / kForwardQueries;
    key_ = scratch_.take(plan.pack_keys * plan.d);
    scores_ = scratch_.take(kForwardQueries * kScoreStride);
    value_ = scratch_.take(plan.value_floats());
    states_ = scratch_.take(plan.tiles_per_job() * plan.tile_floats());
  }

  void run() {
    const int64_t tiles = heads_ * tiles_per_head_;
    for (int64_t t = 0; t < tiles; ++t) init(t);
    // All jobs of a block of rows divide the keys at the same places, so that no sum depends on the number of
    // jobs.
    const Range keys = visible(rows_.begin, rows_.end), block = visible(rows_.block_begin, rows_.block_end);
    const bool packs_all = block.high - block.low <= plan_.pack_keys;
    const int64_t step = packs_all ? plan_.pack_keys : kForwardKeys, grain = packs_all ? NR : kForwardKeys;
    const int64_t first = block.low + (keys.low - block.low) / grain * grain;
    for (int64_t j0 = first; j0 < keys.high; j0 += step) {
      if (interrupted()) return;
      KeyTile key{j0, imin(step, keys.high - j0), nullptr, nullptr, KeyTile::unknown};
      for (int64_t t = 0; t < tiles; ++t) visit(tile(t), key);
    }
    if (pooled_) pooled_->gather(kept_);
    for (int64_t t = 0; t < tiles; ++t) finish(tile(t));
  }

 private:
  // The keys that queries begin … end can see.
  Range visible(int64_t begin, int64_t end) const {
    if (!p_.mask) return {0, p_.j()};
    return key_range(*p_.mask.nodes, {b_, first_head_, p_.i(), p_.j()}, begin, end);
  }

  QueryTile tile(int64_t t) const {
    const int64_t i0 = rows_.begin + t % tiles_per_head_ * kForwardQueries;
    float* at = states_ + t * plan_.tile_floats();
    float* out = at + kForwardQueries * plan_.d;
    float* row_max = out + kForwardQueries * plan_.padded_e;
    return {first_head_ + t / tiles_per_head_, i0, imin(kForwardQueries, rows_.end - i0), at, out, row_max,
            row_max + kForwardQueries};
  }

  void init(int64_t t) {
    const QueryTile q = tile(t);
    dispatch_dtype(p_.query.dtype, [&](auto* type) {
      const auto* from = static_cast<decltype(type)>(p_.query.data) + p_.query.at(b_, q.h, q.i0);
      pack_blocks(from, p_.query.stride[2], q.rows, plan_.d, query_factor(p_), const_cast<float*>(q.query));
    });
    for (int64_t r = 0; r < q.rows * plan_.padded_e; ++r) q.out[r] = 0;
    const float sink = sink_score(p_, q.h);
    for (int64_t r = 0; r < q.rows; ++r) {
      q.row_max[r] = sink, q.row_sum[r] = sink == kMasked ? 0 : 1;
      if constexpr (Lens::active) lens_.init(q.h, q.i0 + r);
      if (pooled_) pooled_->init(q.h, q.i0 + r);
    }
  }

  void pack(KeyTile& key) {
    dispatch_dtype(p_.key.dtype, [&](auto* type) {
      using T = decltype(type);
      pack_panels(static_cast<T>(p_.key.data) + p_.key.at(b_, g_, key.j0), p_.key.stride[2], key.count, plan_.d,
                  key_);
      pack_columns(static_cast<T>(p_.value.data) + p_.value.at(b_, g_, key.j0), p_.value.stride[2], key.count,
                   plan_.e, value_);
    });
    key.key = key_;
    key.value = value_;
  }

  // The keys of one visit, j0 + first … j0 + count, where j0 is the start of a panel.
  struct KeySpan {
    int64_t j0, first, count;
    bool masked;  // some query may not see some key
  };

  // One tile of queries against one tile of keys.
  void visit(const QueryTile& q, KeyTile& key) {
    const Extent extent{b_, q.h, p_.i(), p_.j()};
    int64_t low = key.j0, high = key.j0 + key.count;
    if (p_.mask) {
      const Range visible = key_range(*p_.mask.nodes, extent, q.i0, q.i0 + q.rows);
      low = imax(low, visible.low), high = imin(high, visible.high);
      if (low < high && q.rows > kForwardHalf && halving_saves_work(q, extent, low, high)) {
        visit(slice(q, 0, kForwardHalf), key);
        visit(slice(q, kForwardHalf, q.rows), key);
        return;
      }
    }
    for (int64_t from = low; from < high;) {
      const int64_t skip = (from - key.j0) / NR * NR;  // whole panels before the first key seen
      const int64_t to = imin(high, key.j0 + skip + kForwardSpan);
      Cover cover = Cover::all;
      if (p_.mask) cover = tile_cover(*p_.mask.nodes, extent, {q.i0, q.i0 + q.rows, from, to});
      if (cover != Cover::none)
        attend(q, key, skip, {key.j0 + skip, from - key.j0 - skip, to - key.j0 - skip, cover == Cover::some});
      from = to;
    }
  }

  // Adds the keys of a span, which begins `skip` keys into the tile, to the running softmax and output.
  void attend(const QueryTile& q, KeyTile& key, int64_t skip, const KeySpan& span) {
    if (!key.key) pack(key);
    const RightMatrix keys = in_panels(key.key + skip * plan_.d, plan_.d);
    float* weights = pooled_ ? scratch_.take(q.rows * kScoreStride + kForwardQueries) : scores_;
    if (!softmax_in_registers(q, keys, span, weights)) softmax_by_rows(q, keys, span, weights);
    if (pooled_) keep_weights(q, key.j0, skip, span.count, weights);
    const float* dropped = weights;
    if (p_.dropout > 0) apply_dropout(q, span, weights), dropped = scores_;
    if (span.masked && has_nonfinite_values(key)) return add_allowed(q, key, skip, span, dropped);
    const RightMatrix values{key.value + (skip + span.first) * NR, NR, column_panel(key.count)};
    gemm<Left::rows>(q.rows, plan_.padded_e, span.count - span.first, in_rows(dropped + span.first, kScoreStride),
                     values, AddBlock{q.out, plan_.padded_e});
  }

  bool has_nonfinite_values(KeyTile& key) const {
    if (key.values == KeyTile::unknown) {
      key.values = KeyTile::finite;
      for (int64_t c = 0; c < plan_.padded_e / NR; ++c)
        if (!is_finite_row(key.value + c * column_panel(key.count), key.count * NR))
          key.values = KeyTile::nonfinite;
    }
    return key.values == KeyTile::nonfinite;
  }

  // The product of weights and values over the allowed keys alone: masked keys have a weight of 0, but 0 · ∞ and
  // 0 · NaN are NaN.
  void add_allowed(const QueryTile& q, const KeyTile& key, int64_t skip, const KeySpan& span,
                   const float* weights) const {
    for (int64_t r = 0; r < q.rows; ++r) {
      uint64_t words[kForwardSpan / kWordKeys];
      row_bits(*p_.mask.nodes, {b_, q.h, p_.i(), p_.j()}, q.i0 + r, span.j0, span.count, words);
      for (int64_t t = span.first; t < span.count; ++t) {
        if (!bit(words, t)) continue;
        const float weight = weights[r * kScoreStride + t];
        for (int64_t c = 0; c < plan_.padded_e; c += W) {
          const float* value = key.value + c / NR * column_panel(key.count) + (skip + t) * NR + c % NR;
          float* out = q.out + r * plan_.padded_e + c;
          store(out, load(out) + weight * load(value));
        }
      }
    }
  }

  // Keeps weights until their rows are final, followed in memory by the row maxima that they were computed with.
  void keep_weights(const QueryTile& q, int64_t tile, int64_t skip, int64_t count, float* weights) {
    float* base = weights + q.rows * kScoreStride;
    for (int64_t r = 0; r < q.rows; ++r) base[r] = q.row_max[r];
    kept_.push_back({q.h, q.i0, q.rows, tile, skip, count, weights, base, q.row_max, q.row_sum});
  }

  // An epilogue that turns scores into weights in registers, relative to the row maximum of earlier tiles.
  struct ExpInRegisters {
    const QueryTile& q;
    int64_t j0;
    float* weights;
    float* sums;       // rows × W
    vf* max_exponent;  // the largest score − row_max
    Lens* lens;

    template <int R>
    LIMELIGHT_INLINE void operator()(int64_t row, int64_t column, vf (&score)[R][2]) const {
      float* at = weights + row * kScoreStride + column;
      vf largest = *max_exponent;
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        vf(&pair)[2] = score[r];
        pair[0] -= q.row_max[row + r];
        pair[1] -= q.row_max[row + r];
        largest = vmax(pair[0], vmax(pair[1], largest));
        [[maybe_unused]] const vf exponent[2] = {pair[0], pair[1]};
        exp2(pair);
        if constexpr (Lens::active) lens->record(row + r, q.i0 + row + r, j0 + column, exponent, pair);
        store(at + r * kScoreStride, pair[0]);
        store(at + r * kScoreStride + W, pair[1]);
        float* sum = sums + (row + r) * W;
        store(sum, load(sum) + (pair[0] + pair[1]));
      }
      *max_exponent = largest;
    }
  };

  // The fast path from queries and keys to weights, for scores that need nothing but the exponential. Returns
  // false and leaves the running state as it is where it does not apply: a row has no maximum yet, or a score
  // exceeds the maximum so far that its weight could overflow.
  bool softmax_in_registers(const QueryTile& q, RightMatrix keys, const KeySpan& span, float* weights) {
    if (span.masked || span.first > 0 || span.count % NR || has_adjustments(p_)) return false;
    for (int64_t r = 0; r < q.rows; ++r)
      if (q.row_max[r] == kMasked) return false;
    alignas(64) float sums[kForwardQueries * W] = {};
    vf max_exponent = splat(kMasked);
    if constexpr (Lens::active) lens_.begin_tile(q.rows);
    gemm<Left::columns>(q.rows, span.count, plan_.d, in_packed_blocks(q.query, plan_.d), keys,
                        ExpInRegisters{q, span.j0, weights, sums, &max_exponent, &lens_});
    if (hmax(max_exponent) > kHeadroom) return false;
    for (int64_t r = 0; r < q.rows; ++r) {
      q.row_sum[r] += hsum(load(sums + r * W));
      if constexpr (Lens::active)
        lens_.end_tile_row({q.h, q.i0 + r, span.j0, span.count, weights + r * kScoreStride}, r, q.row_max[r]);
    }
    return true;
  }

  // The general path, which applies bias, softcap and mask row by row.
  void softmax_by_rows(const QueryTile& q, RightMatrix keys, const KeySpan& span, float* weights) {
    const int64_t count = span.count;
    gemm<Left::columns>(q.rows, round_up(count, NR), plan_.d, in_packed_blocks(q.query, plan_.d), keys,
                        StoreBlock{weights, kScoreStride});
    for (int64_t r = 0; r < q.rows; ++r) {
      float* row = weights + r * kScoreStride;
      if (has_adjustments(p_)) adjust_row(p_, b_, q.h, q.i0 + r, span.j0, count, row);
      for (int64_t t = 0; t < span.first; ++t) row[t] = kMasked;
      for (int64_t t = count; t % NR; ++t) row[t] = kMasked;
      if (span.masked) {
        uint64_t words[kForwardSpan / kWordKeys];
        row_bits(*p_.mask.nodes, {b_, q.h, p_.i(), p_.j()}, q.i0 + r, span.j0, count, words);
        apply_mask(row, words, count);
      }
      [[maybe_unused]] const Row row_view{q.h, q.i0 + r, span.j0, count, row};
      if constexpr (Lens::active) lens_.before_softmax(row_view, {q.row_max[r], q.row_sum[r]});
      softmax_row(q, r, row, round_up(count, NR));
      if constexpr (Lens::active) lens_.after_softmax(row_view, {q.row_max[r], q.row_sum[r]});
    }
  }

  // Whether the halves of a tile see noticeably fewer keys than the whole, as they do at the edges of a window.
  bool halving_saves_work(const QueryTile& q, const Extent& extent, int64_t low, int64_t high) const {
    int64_t saved = 0;
    const Range halves[] = {{0, kForwardHalf}, {kForwardHalf, q.rows}};
    for (const Range& half : halves) {
      const Range visible = key_range(*p_.mask.nodes, extent, q.i0 + half.low, q.i0 + half.high);
      const int64_t keys = imin(high, visible.high) - imax(low, visible.low);
      saved += (half.high - half.low) * (high - low - imax(0, keys));
    }
    return saved * 32 >= q.rows * (high - low);
  }

  QueryTile slice(const QueryTile& q, int64_t from, int64_t to) const {
    return {q.h,
            q.i0 + from,
            to - from,
            q.query + from * plan_.d,
            q.out + from * plan_.padded_e,
            q.row_max + from,
            q.row_sum + from};
  }

  // Replaces scores by weights 2^(score − row_max), not yet divided by their sum; `count` is a multiple of NR.
  void softmax_row(const QueryTile& q, int64_t r, float* row, int64_t count) {
    vf largest = splat(q.row_max[r]), largest_odd = largest;
    for (int64_t t = 0; t < count; t += NR) {
      largest = vmax(load(row + t), largest);
      largest_odd = vmax(load(row + t + W), largest_odd);
    }
    largest = vmax(largest_odd, largest);
    const float row_max = hmax(largest);
    if (row_max > q.row_max[r]) {
      const float shrink = exp2(splat(q.row_max[r] - row_max))[0];
      q.row_max[r] = row_max;
      q.row_sum[r] *= shrink;
      float* out = q.out + r * plan_.padded_e;
      for (int64_t t = 0; t < plan_.padded_e; t += W) store(out + t, load(out + t) * shrink);
    }
    // Before the first allowed key the maximum is −inf, and −inf − −inf would be NaN.
    const vf base = splat(row_max == kMasked ? 0 : row_max);
    vf sum = vf{}, sum_odd = vf{};
    for (int64_t t = 0; t < count; t += NR) {
      vf pair[2] = {load(row + t) - base, load(row + t + W) - base};
      exp2(pair);
      store(row + t, pair[0]);
      store(row + t + W, pair[1]);
      sum += pair[0];
      sum_odd += pair[1];
    }
    q.row_sum[r] += hsum(sum + sum_odd);
  }

  // Writes the weights after dropout to scores_.
  void apply_dropout(const QueryTile& q, const KeySpan& span, const float* weights) {
    for (int64_t r = 0; r < q.rows; ++r) {
      const uint32_t row_seed = plan_.dropout.row_seed(b_ * p_.h() + q.h, q.i0 + r);
      const int64_t row = r * kScoreStride;
      for (int64_t t = 0; t < span.count; t += W)
        store(scores_ + row + t, select(plan_.dropout.keep(row_seed, span.j0 + t), load(weights + row + t), vf{}));
    }
  }

  void finish(const QueryTile& q) const {
    const View& out = plan_.call.out;
    const int64_t first = (b_ * p_.h() + q.h) * p_.i() + q.i0;
    float* lse = plan_.call.lse + first;
    for (int64_t r = 0; r < q.rows; ++r) {
      if constexpr (Lens::active) lens_.finish(q.h, q.i0 + r, {q.row_max[r], q.row_sum[r]});
      if (pooled_) pooled_->finish(q.h, q.i0 + r);
      if (plan_.call.row_max) plan_.call.row_max[first + r] = q.row_max[r];
      if (plan_.call.row_sum) plan_.call.row_sum[first + r] = q.row_sum[r];
      const RowNormaliser normaliser = row_normaliser(p_, first + r, q.row_max[r], q.row_sum[r]);
      const float factor = plan_.dropout.scale * normaliser.factor;
      float* row = q.out + r * plan_.padded_e;
      if (q.row_sum[r] == 0)
        for (int64_t t = 0; t < plan_.e; ++t) row[t] = 0;  // 0 · NaN of a value would leak otherwise
      dispatch_dtype(out.dtype, [&](auto* type) {
        store_row(row, static_cast<decltype(type)>(out.data) + out.at(b_, q.h, q.i0 + r), plan_.e, factor);
      });
      lse[r] = normaliser.lse;
    }
  }

  const ForwardPlan& plan_;
  const Problem& p_;
  int64_t b_, g_;
  Segment rows_;
  int64_t first_head_, heads_, tiles_per_head_;
  Scratch scratch_;
  float *key_ = nullptr, *value_ = nullptr, *scores_ = nullptr, *states_ = nullptr;
  Lens lens_;
  PooledAccumulator* pooled_;
  std::vector<KeptWeights> kept_;  // ordered by key tile, then query tile
};

// Runs every job of a call, each with the lens that `lens_of` returns for its batch row.
template <class LensOf>
bool run_all_jobs(const Forward& call, const LensOf& lens_of) {
  const Problem& p = call.problem;
  if (p.b() == 0 || p.h() == 0 || p.i() == 0) return true;
  const ForwardPlan plan(call);
  const Segments segments(p.mask, p.i(), plan.rows_per_job);
  const int64_t jobs_per_key_head = segments.count() * plan.chunks;
  return parallel(p.b() * p.g() * jobs_per_key_head, plan.threads, [&](int64_t job, int) {
    const int64_t key_head = job / jobs_per_key_head, rest = job % jobs_per_key_head;
    // The last queries first: under a causal mask their jobs take longest.
    const Segment rows = segments[segments.count() - 1 - rest / plan.chunks];
    const int64_t b = key_head / p.g();
    Job(plan, b, key_head % p.g(), rest % plan.chunks, rows, lens_of(b)).run();
  });
}

}  // namespace

bool forward(const Forward& call) {
  if (prefers_decode(call.problem)) return decode(call);
  return run_all_jobs(call, [](int64_t) { return NoLens{}; });
}

bool lens_forward(const LensForward& call) {
  const Problem& p = call.forward.problem;
  const PooledStats& pooled_stats = call.pooled_stats;
  const auto recorder = [&](int64_t b) { return RowRecorder(p, call.row_stats, b); };
  if (!pooled_stats.piece_count) return run_all_jobs(call.forward, recorder);
  if (p.b() == 0 || p.h() == 0 || p.i() == 0) return true;
  // A job is a whole piece, because each piece has its own sums over queries.
  const ForwardPlan plan(call.forward, true);
  const Segments segments(p.mask, p.i(), plan.rows_per_job);
  const int64_t jobs_per_key_head = pooled_stats.piece_count * plan.chunks;
  return parallel(p.b() * p.g() * jobs_per_key_head, plan.threads, [&](int64_t job, int) {
    const int64_t key_head = job / jobs_per_key_head, rest = job % jobs_per_key_head, b = key_head / p.g();
    const int64_t piece = pooled_stats.piece_count - 1 - rest / plan.chunks;  // the longest first
    PooledAccumulator pooled(p, pooled_stats, b, piece);
    for (int64_t t = 0; t < segments.count() && !interrupted(); ++t) {
      const int64_t begin = imax(segments[t].begin, pooled_stats.pieces[piece]);
      const int64_t end = imin(segments[t].end, pooled_stats.pieces[piece + 1]);
      const Segment rows{begin, end, begin, end};
      if (begin < end) Job(plan, b, key_head % p.g(), rest % plan.chunks, rows, recorder(b), &pooled).run();
    }
  });
}

}  // namespace limelight::LIMELIGHT_ISA
