// out = softmax(Q·Kᵀ)·V without the matrix of scores: tiles of queries stream over tiles of keys with a
// running maximum and sum (Milakov & Gimelshein 2018; Dao et al. 2022).
#include "forward_plan.h"
#include "harvest.h"
#include "kernels.h"
#include "scores.h"
#include "segments.h"

namespace limelight::LIMELIGHT_ISA {
namespace {

constexpr float kHeadroom = 16;  // log2 of the greatest weight: sums of as many as can be are far from overflow

// `Lens` is Watch, or Unwatched.
template <class Lens>
class Job {
 public:
  Job(const Plan& plan, int64_t b, int64_t g, int64_t chunk, Segment rows, Lens lens, Harvest* harvest = nullptr)
      : plan_(plan), p_(plan.p), b_(b), g_(g), rows_(rows), lens_(lens), harvest_(harvest) {
    first_head_ = g * p_.group() + chunk * plan.heads_a_job;
    heads_ = smaller(plan.heads_a_job, (g + 1) * p_.group() - first_head_);
    tiles_a_head_ = (rows.end - rows.begin + kTileRows - 1) / kTileRows;
    float* at = scratch(plan.floats());
    key_ = at, at += plan.pack_keys * plan.d;
    scores_ = at, at += kTileRows * kScoreStride;
    value_ = at, at += column_panel(plan.pack_keys) / NR * plan.padded_e;
    states_ = at, at += plan.tiles_a_job() * plan.tile_floats();
    keep_ = at;
  }

  void run() {
    const int64_t tiles = heads_ * tiles_a_head_;
    for (int64_t t = 0; t < tiles; ++t) start(t);
    // Where keys are cut is the same for all jobs of a block of rows, so that no sum depends on their number.
    const Range keys = seen_by(rows_.begin, rows_.end), block = seen_by(rows_.block_begin, rows_.block_end);
    const bool at_once = block.high - block.low <= plan_.pack_keys;
    const int64_t step = at_once ? plan_.pack_keys : kTileKeys, grain = at_once ? NR : kTileKeys;
    const int64_t first = block.low + (keys.low - block.low) / grain * grain;
    for (int64_t j0 = first; j0 < keys.high; j0 += step) {
      if (interrupted()) return;
      KeyTile key{j0, smaller(step, keys.high - j0), nullptr, nullptr, KeyTile::unknown};
      for (int64_t t = 0; t < tiles; ++t) visit(tile(t), key);
    }
    if (harvest_) harvest_->gather(kept_);
    for (int64_t t = 0; t < tiles; ++t) finish(tile(t));
  }

 private:
  Range seen_by(int64_t begin, int64_t end) const {
    if (!p_.mask) return {0, p_.j()};
    return key_range(*p_.mask.nodes, {b_, first_head_, p_.i(), p_.j()}, begin, end);
  }

  QueryTile tile(int64_t t) const {
    const int64_t i0 = rows_.begin + t % tiles_a_head_ * kTileRows;
    float* at = states_ + t * plan_.tile_floats();
    float* out = at + kTileRows * plan_.d;
    float* top = out + kTileRows * plan_.padded_e;
    return {
        first_head_ + t / tiles_a_head_, i0, smaller(kTileRows, rows_.end - i0), at, out, top, top + kTileRows};
  }

  void start(int64_t t) {
    const QueryTile q = tile(t);
    with_type(p_.query.dtype, [&](auto* type) {
      const auto* from = static_cast<decltype(type)>(p_.query.data) + p_.query.at(b_, q.h, q.i0);
      pack_blocks(from, p_.query.stride[2], q.rows, plan_.d, query_factor(p_), const_cast<float*>(q.query));
    });
    for (int64_t r = 0; r < q.rows * plan_.padded_e; ++r) q.out[r] = 0;
    for (int64_t r = 0; r < q.rows; ++r) {
      q.top[r] = kNever, q.sum[r] = 0;
      if constexpr (Lens::active) lens_.start(q.h, q.i0 + r);
      if (harvest_) harvest_->start(q.h, q.i0 + r);
    }
  }

  void pack(KeyTile& key) {
    with_type(p_.key.dtype, [&](auto* type) {
      using T = decltype(type);
      pack_panels(static_cast<T>(p_.key.data) + p_.key.at(b_, g_, key.j0), p_.key.stride[2], key.count, plan_.d,
                  key_);
      pack_columns(static_cast<T>(p_.value.data) + p_.value.at(b_, g_, key.j0), p_.value.stride[2], key.count,
                   plan_.e, value_);
    });
    key.key = key_;
    key.value = value_;
  }

  // The keys of a visit, from the first panel that is looked at: j0 + first … j0 + count.
  struct VisitedKeys {
    int64_t j0, first, count;
    bool masked;  // not every query may see every key
  };

  // One tile of queries against one tile of keys.
  void visit(const QueryTile& q, KeyTile& key) {
    const Extent extent{b_, q.h, p_.i(), p_.j()};
    int64_t low = key.j0, high = key.j0 + key.count;
    if (p_.mask) {
      const Range seen = key_range(*p_.mask.nodes, extent, q.i0, q.i0 + q.rows);
      low = greater(low, seen.low), high = smaller(high, seen.high);
      if (low < high && q.rows > kHalfTile && narrows(q, extent, low, high)) {
        visit(part(q, 0, kHalfTile), key);
        visit(part(q, kHalfTile, q.rows), key);
        return;
      }
    }
    for (int64_t from = low; from < high;) {
      const int64_t skip = (from - key.j0) / NR * NR;  // whole panels before the first key seen
      const int64_t to = smaller(high, key.j0 + skip + kVisitKeys);
      Cover cover = Cover::all;
      if (p_.mask) cover = LIMELIGHT_ISA::cover(*p_.mask.nodes, extent, {q.i0, q.i0 + q.rows, from, to});
      if (cover != Cover::none)
        attend(q, key, skip, {key.j0 + skip, from - key.j0 - skip, to - key.j0 - skip, cover == Cover::some});
      from = to;
    }
  }

  void attend(const QueryTile& q, KeyTile& key, int64_t skip, const VisitedKeys& seen) {
    if (!key.key) pack(key);
    const RightMatrix keys = in_panels(key.key + skip * plan_.d, plan_.d);
    float* weights = harvest_ ? keep_ : scores_;
    if (!weigh_at_once(q, keys, seen, weights)) weigh_by_rows(q, keys, seen, weights);
    if (harvest_) keep(q, key.j0, skip, seen.count);
    const float* taken = weights;
    if (p_.dropout > 0) drop(q, seen, weights), taken = scores_;
    if (seen.masked && holds_wild_values(key)) return add_allowed(q, key, skip, seen, taken);
    const RightMatrix values{key.value + (skip + seen.first) * NR, NR, column_panel(key.count)};
    product<Left::rows>(q.rows, plan_.padded_e, seen.count - seen.first, in_rows(taken + seen.first, kScoreStride),
                        values, Add{q.out, plan_.padded_e});
  }

  bool holds_wild_values(KeyTile& key) const {
    if (key.values == KeyTile::unknown) {
      key.values = KeyTile::finite;
      for (int64_t c = 0; c < plan_.padded_e / NR; ++c)
        if (!finite_row(key.value + c * column_panel(key.count), key.count * NR)) key.values = KeyTile::wild;
    }
    return key.values == KeyTile::wild;
  }

  // The product of weights and values over the allowed keys alone. Forbidden ones have no weight, but 0 · ∞ and
  // 0 · NaN are NaN: among such values they would not be without influence.
  void add_allowed(const QueryTile& q, const KeyTile& key, int64_t skip, const VisitedKeys& seen,
                   const float* weights) const {
    for (int64_t r = 0; r < q.rows; ++r) {
      uint64_t words[kVisitKeys / kWordKeys];
      row_bits(*p_.mask.nodes, {b_, q.h, p_.i(), p_.j()}, q.i0 + r, seen.j0, seen.count, words);
      for (int64_t t = seen.first; t < seen.count; ++t) {
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

  // What stands at keep_ stays there, with the maxima it was made with, until its rows are done.
  void keep(const QueryTile& q, int64_t tile, int64_t skip, int64_t count) {
    float* base = keep_ + q.rows * kScoreStride;
    for (int64_t r = 0; r < q.rows; ++r) base[r] = q.top[r];
    kept_.push_back({q.h, q.i0, q.rows, tile, skip, count, keep_, base, q.top, q.sum});
    keep_ = base + kTileRows;
  }

  // Weights made while their scores are still in registers, with the maximum of the tiles before as the base.
  struct AtOnce {
    const QueryTile& q;
    int64_t j0;
    float* weights;
    float* sums;  // rows × W
    vf* most;     // the greatest score − base
    Lens* lens;

    template <int R>
    LIMELIGHT_INLINE void operator()(int64_t row, int64_t column, vf (&score)[R][2]) const {
      float* at = weights + row * kScoreStride + column;
      vf highest = *most;
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        vf(&pair)[2] = score[r];
        pair[0] -= q.top[row + r];
        pair[1] -= q.top[row + r];
        highest = larger(pair[0], larger(pair[1], highest));
        [[maybe_unused]] const vf rise[2] = {pair[0], pair[1]};
        exp2(pair);
        if constexpr (Lens::active) lens->note(row + r, q.i0 + row + r, j0 + column, rise, pair);
        store(at + r * kScoreStride, pair[0]);
        store(at + r * kScoreStride + W, pair[1]);
        float* sum = sums + (row + r) * W;
        store(sum, load(sum) + (pair[0] + pair[1]));
      }
      *most = highest;
    }
  };

  // The short way from queries and keys to weights, for scores that want nothing but the exponential. False,
  // with nothing done, where it cannot serve: some row has no maximum yet, or one that these scores overtop so
  // far that their weights could overflow.
  bool weigh_at_once(const QueryTile& q, RightMatrix keys, const VisitedKeys& seen, float* weights) {
    if (seen.masked || seen.first > 0 || seen.count % NR || adjusts(p_)) return false;
    for (int64_t r = 0; r < q.rows; ++r)
      if (q.top[r] == kNever) return false;
    alignas(64) float sums[kTileRows * W] = {};
    vf most = splat(kNever);
    if constexpr (Lens::active) lens_.open(q.rows);
    product<Left::columns>(q.rows, seen.count, plan_.d, in_packed_blocks(q.query, plan_.d), keys,
                           AtOnce{q, seen.j0, weights, sums, &most, &lens_});
    if (max_of(most) > kHeadroom) return false;
    for (int64_t r = 0; r < q.rows; ++r) {
      q.sum[r] += sum_of(load(sums + r * W));
      if constexpr (Lens::active)
        lens_.close({q.h, q.i0 + r, seen.j0, seen.count, weights + r * kScoreStride}, r, q.top[r]);
    }
    return true;
  }

  void weigh_by_rows(const QueryTile& q, RightMatrix keys, const VisitedKeys& seen, float* weights) {
    const int64_t count = seen.count;
    product<Left::columns>(q.rows, round_up(count, NR), plan_.d, in_packed_blocks(q.query, plan_.d), keys,
                           Set{weights, kScoreStride});
    for (int64_t r = 0; r < q.rows; ++r) {
      float* row = weights + r * kScoreStride;
      if (adjusts(p_)) adjust_row(p_, b_, q.h, q.i0 + r, seen.j0, count, row);
      for (int64_t t = 0; t < seen.first; ++t) row[t] = kNever;
      for (int64_t t = count; t % NR; ++t) row[t] = kNever;
      if (seen.masked) {
        uint64_t words[kVisitKeys / kWordKeys];
        row_bits(*p_.mask.nodes, {b_, q.h, p_.i(), p_.j()}, q.i0 + r, seen.j0, count, words);
        forbid(row, words, count);
      }
      [[maybe_unused]] const Row noted{q.h, q.i0 + r, seen.j0, count, row};
      if constexpr (Lens::active) lens_.before(noted, {q.top[r], q.sum[r]});
      weigh(q, r, row, round_up(count, NR));
      if constexpr (Lens::active) lens_.after(noted, {q.top[r], q.sum[r]});
    }
  }

  // Whether the halves of a tile see noticeably fewer keys than the whole: at the edges of a window they do.
  bool narrows(const QueryTile& q, const Extent& extent, int64_t low, int64_t high) const {
    int64_t saved = 0;
    const Range halves[] = {{0, kHalfTile}, {kHalfTile, q.rows}};
    for (const Range& half : halves) {
      const Range seen = key_range(*p_.mask.nodes, extent, q.i0 + half.low, q.i0 + half.high);
      const int64_t keys = smaller(high, seen.high) - greater(low, seen.low);
      saved += (half.high - half.low) * (high - low - greater(0, keys));
    }
    return saved * 32 >= q.rows * (high - low);
  }

  QueryTile part(const QueryTile& q, int64_t from, int64_t to) const {
    return {q.h,          q.i0 + from, to - from, q.query + from * plan_.d, q.out + from * plan_.padded_e,
            q.top + from, q.sum + from};
  }

  // Scores become weights that lack only the division by their sum; `count` is a multiple of NR.
  void weigh(const QueryTile& q, int64_t r, float* row, int64_t count) {
    vf best = splat(q.top[r]), best_odd = best;
    for (int64_t t = 0; t < count; t += NR) {
      best = larger(load(row + t), best);
      best_odd = larger(load(row + t + W), best_odd);
    }
    best = larger(best_odd, best);
    const float top = max_of(best);
    if (top > q.top[r]) {
      const float shrink = exp2(splat(q.top[r] - top))[0];
      q.top[r] = top;
      q.sum[r] *= shrink;
      float* out = q.out + r * plan_.padded_e;
      for (int64_t t = 0; t < plan_.padded_e; t += W) store(out + t, load(out + t) * shrink);
    }
    // While nothing was allowed the maximum is −inf, and −inf − −inf would be NaN.
    const vf base = splat(top == kNever ? 0 : top);
    vf sum = vf{}, sum_odd = vf{};
    for (int64_t t = 0; t < count; t += NR) {
      vf pair[2] = {load(row + t) - base, load(row + t + W) - base};
      exp2(pair);
      store(row + t, pair[0]);
      store(row + t + W, pair[1]);
      sum += pair[0];
      sum_odd += pair[1];
    }
    q.sum[r] += sum_of(sum + sum_odd);
  }

  // The weights that dropout leaves, to scores_.
  void drop(const QueryTile& q, const VisitedKeys& seen, const float* weights) {
    for (int64_t r = 0; r < q.rows; ++r) {
      const uint32_t word = plan_.dropout.row(b_ * p_.h() + q.h, q.i0 + r);
      const int64_t row = r * kScoreStride;
      for (int64_t t = 0; t < seen.count; t += W)
        store(scores_ + row + t, select(plan_.dropout.keep(word, seen.j0 + t), load(weights + row + t), vf{}));
    }
  }

  void finish(const QueryTile& q) const {
    const View& out = plan_.call.out;
    float* lse = plan_.call.lse + (b_ * p_.h() + q.h) * p_.i() + q.i0;
    for (int64_t r = 0; r < q.rows; ++r) {
      if constexpr (Lens::active) lens_.finish(q.h, q.i0 + r, {q.top[r], q.sum[r]});
      if (harvest_) harvest_->finish(q.h, q.i0 + r);
      const bool empty = q.sum[r] == 0;
      const float factor = empty ? 0 : plan_.dropout.grow / q.sum[r];
      float* row = q.out + r * plan_.padded_e;
      if (empty)
        for (int64_t t = 0; t < plan_.e; ++t) row[t] = 0;  // 0 · NaN of a value would leak otherwise
      with_type(out.dtype, [&](auto* type) {
        write_row(row, static_cast<decltype(type)>(out.data) + out.at(b_, q.h, q.i0 + r), plan_.e, factor);
      });
      const float top = q.top[r];
      lse[r] = empty ? kNever : top == kInfinity ? top : top * static_cast<float>(kLn2) + __builtin_logf(q.sum[r]);
    }
  }

  const Plan& plan_;
  const Problem& p_;
  int64_t b_, g_;
  Segment rows_;
  int64_t first_head_, heads_, tiles_a_head_;
  float *key_ = nullptr, *value_ = nullptr, *scores_ = nullptr, *states_ = nullptr;
  Lens lens_;
  Harvest* harvest_;
  float* keep_ = nullptr;   // room for the next weights that are kept
  std::vector<Kept> kept_;  // in the order they were made: key tiles outside, query tiles inside
};

// Runs every job of a call, each with the lens that `lens_of` makes for its batch row.
template <class LensOf>
bool sweep(const Forward& call, const LensOf& lens_of) {
  const Problem& p = call.problem;
  if (p.b() == 0 || p.h() == 0 || p.i() == 0) return true;
  const Plan plan(call);
  const Segments segments(p.mask, p.i(), plan.rows_a_job);
  const int64_t jobs_a_head = segments.count() * plan.chunks;
  return parallel(p.b() * p.g() * jobs_a_head, plan.threads, [&](int64_t job, int) {
    const int64_t pair = job / jobs_a_head, rest = job % jobs_a_head;
    // The last queries first: under a causal mask they are the longest jobs.
    const Segment rows = segments[segments.count() - 1 - rest / plan.chunks];
    const int64_t b = pair / p.g();
    Job(plan, b, pair % p.g(), rest % plan.chunks, rows, lens_of(b)).run();
  });
}

}  // namespace

bool forward(const Forward& call) {
  if (decode_suits(call.problem)) return decode(call);
  return sweep(call, [](int64_t) { return Unwatched{}; });
}

bool look(const Look& call) {
  const Problem& p = call.forward.problem;
  const Survey& survey = call.survey;
  const auto watch = [&](int64_t b) { return Watch(p, call.notes, b); };
  if (!survey.piece_count) return sweep(call.forward, watch);
  if (p.b() == 0 || p.h() == 0 || p.i() == 0) return true;
  // A job is a whole piece, because sums over queries go to one place a piece.
  const Plan plan(call.forward, true);
  const Segments segments(p.mask, p.i(), plan.rows_a_job);
  const int64_t jobs_a_pair = survey.piece_count * plan.chunks;
  return parallel(p.b() * p.g() * jobs_a_pair, plan.threads, [&](int64_t job, int) {
    const int64_t pair = job / jobs_a_pair, rest = job % jobs_a_pair, b = pair / p.g();
    const int64_t piece = survey.piece_count - 1 - rest / plan.chunks;  // the longest first
    Harvest harvest(p, survey, b, piece);
    for (int64_t t = 0; t < segments.count() && !interrupted(); ++t) {
      const int64_t begin = greater(segments[t].begin, survey.pieces[piece]);
      const int64_t end = smaller(segments[t].end, survey.pieces[piece + 1]);
      const Segment rows{begin, end, begin, end};
      if (begin < end) Job(plan, b, pair % p.g(), rest % plan.chunks, rows, watch(b), &harvest).run();
    }
  });
}

}  // namespace limelight::LIMELIGHT_ISA
