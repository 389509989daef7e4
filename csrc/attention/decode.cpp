// One or few queries against a long cache: the keys are split, so that all cores work even at batch 1, and the
// partial results are combined by their log-sum-exp (flash-decoding).
//
// The limit is memory bandwidth, not arithmetic. Keys and values are read in place, without packing, once for all
// queries of a group (GQA: the group's heads are stacked as rows), in four streams. How the keys are split depends
// on the sizes alone and never on the number of threads, so the result is the same bit for bit.
#include <algorithm>
#include <memory>

#include "attention/decode_block.h"
#include "entry_points.h"

namespace limelight::LIMELIGHT_ISA {
namespace decoding {
namespace {

// What the mask leaves of keys j0 … j0 + count for the queries of one head.
Cover cover_of_head(const DecodePlan& plan, int64_t b, int64_t h, int64_t j0, int64_t count) {
  const Problem& p = plan.p;
  if (!p.mask) return Cover::all;
  return tile_cover(p.mask.nodes[0], {b, h, p.i(), p.j()}, {0, p.i(), j0, j0 + count});
}

template <int Streams>
bool any_allowed(const DecodePlan& plan, int64_t b, int64_t g, const Block& block) {
  for (int64_t h = g * plan.p.group(); h < (g + 1) * plan.p.group(); ++h)
    for (int64_t x = 0; x < Streams; ++x)
      if (cover_of_head(plan, b, h, block.j0 + x * block.stream_stride, block.steps) != Cover::none) return true;
  return false;
}

// Applies softcap, bias, slopes and mask to one row of scores. Returns whether the mask may forbid any of its
// keys.
template <int Streams>
bool adjust_and_mask_row(const DecodePlan& plan, const RowIndex& at, const Block& block, float* scores) {
  const Problem& p = plan.p;
  bool masked = false;
  for (int64_t x = 0; x < Streams; ++x) {
    const int64_t j0 = block.j0 + x * block.stream_stride;
    float* row = scores + x * kStreamKeys;
    if (has_adjustments(p)) adjust_row(p, at.b, at.h, at.i, j0, block.steps, row);
    for (int64_t t = block.steps; t % W; ++t) row[t] = kMasked;
    if (cover_of_head(plan, at.b, at.h, j0, block.steps) == Cover::all) continue;
    masked = true;
    uint64_t words[(kStreamKeys + kWordKeys - 1) / kWordKeys];
    row_bits(p.mask.nodes[0], {at.b, at.h, p.i(), p.j()}, at.i, j0, block.steps, words);
    apply_mask(row, words, block.steps);
  }
  return masked;
}

template <int Streams, class T>
bool has_nonfinite_values(const DecodePlan& plan, const Block& block, const T* values) {
  for (int64_t x = 0; x < Streams; ++x)
    for (int64_t t = 0; t < block.steps; ++t)
      if (!is_finite_row(values + (block.j0 + x * block.stream_stride + t) * plan.p.value.stride[2], plan.p.e()))
        return true;
  return false;
}

// add_block over the allowed keys alone: forbidden keys have a weight of 0, but 0 · ∞ and 0 · NaN are NaN.
template <int Streams, class T>
void add_allowed(const DecodePlan& plan, int64_t b, int64_t g, const Block& block, const T* values,
                 const float* weights, float* sums) {
  const Problem& p = plan.p;
  for (int64_t r = 0; r < plan.rows; ++r)
    for (int64_t x = 0; x < Streams; ++x) {
      const RowIndex at = row_index(plan, b, g, r);
      const int64_t j0 = block.j0 + x * block.stream_stride;
      uint64_t words[(kStreamKeys + kWordKeys - 1) / kWordKeys];
      row_bits(p.mask.nodes[0], {at.b, at.h, p.i(), p.j()}, at.i, j0, block.steps, words);
      for (int64_t t = 0; t < block.steps; ++t) {
        if (!bit(words, t)) continue;
        const T* value[1] = {values + (j0 + t) * p.value.stride[2]};
        add_rows<1, 1>(weights + r * kDecodeKeys + x * kStreamKeys + t, value, p.e(), sums + r * plan.e, plan.e);
      }
    }
}

// The scratch memory of a job.
struct Workspace {
  float *queries, *scores;
  float* out;  // of the current block: summing by blocks keeps the mean of 100,000 equal keys exact
  vf* spread;

  explicit Workspace(const DecodePlan& plan) {
    Scratch scratch(plan.rows * (plan.d + kDecodeKeys + plan.e + kStreams * W * W));
    queries = scratch.take(plan.rows * plan.d);
    scores = scratch.take(plan.rows * kDecodeKeys);
    out = scratch.take(plan.rows * plan.e);
    spread = reinterpret_cast<vf*>(scratch.take(plan.rows * kStreams * W * W));
  }
};

template <int Streams, class T>
void visit(const DecodePlan& plan, int64_t b, int64_t g, const Block& block, const Workspace& workspace,
           const PartialResult& partial) {
  const Problem& p = plan.p;
  if (p.mask && !any_allowed<Streams>(plan, b, g, block)) return;
  score_block<Streams>(plan, block, static_cast<const T*>(p.key.data) + p.key.at(b, g, 0), workspace.queries,
                       workspace.spread, workspace.scores);
  bool masked = false;
  for (int64_t r = 0; r < plan.rows; ++r) {
    const RowIndex at = row_index(plan, b, g, r);
    float* row = workspace.scores + r * kDecodeKeys;
    masked |= adjust_and_mask_row<Streams>(plan, at, block, row);
    softmax_row<Streams>(plan, at, block, row, r, partial);
  }
  std::fill(workspace.out, workspace.out + plan.rows * plan.e, 0.0f);
  const T* values = static_cast<const T*>(p.value.data) + p.value.at(b, g, 0);
  if (masked && has_nonfinite_values<Streams>(plan, block, values))
    add_allowed<Streams>(plan, b, g, block, values, workspace.scores, workspace.out);
  else
    add_block<Streams>(plan, block, values, workspace.scores, workspace.out);
  for (int64_t t = 0; t < plan.rows * plan.e; t += W)
    store(partial.out + t, load(partial.out + t) + load(workspace.out + t));
}

template <class T>
void read_queries(const DecodePlan& plan, int64_t b, int64_t g, float* queries) {
  const Problem& p = plan.p;
  for (int64_t r = 0; r < plan.rows; ++r) {
    const RowIndex at = row_index(plan, b, g, r);
    const T* from = static_cast<const T*>(p.query.data) + p.query.at(at.b, at.h, at.i);
    load_row(from, queries + r * plan.d, p.d(), plan.d, query_factor(p));
  }
}

// All rows of a key head over one split of its keys.
template <class T>
void run_split(const DecodePlan& plan, int64_t b, int64_t g, Range keys, const PartialResult& partial) {
  const Workspace workspace(plan);
  read_queries<T>(plan, b, g, workspace.queries);
  for (int64_t r = 0; r < plan.rows; ++r) partial.row_max[r] = kMasked, partial.row_sum[r] = 0;
  for (int64_t t = 0; t < plan.rows * plan.e; ++t) partial.out[t] = 0;
  const int64_t stride = (keys.high - keys.low) / kStreams;
  for (int64_t t = 0; t < stride && !interrupted(); t += kStreamKeys)
    visit<kStreams, T>(plan, b, g, {keys.low + t, stride, imin(kStreamKeys, stride - t)}, workspace, partial);
  const int64_t last = keys.low + kStreams * stride;
  if (last < keys.high) visit<1, T>(plan, b, g, {last, 0, keys.high - last}, workspace, partial);
}

// Combines the splits of one key head in their order and writes out and lse.
void combine(const DecodePlan& plan, int64_t b, int64_t g, float* partials) {
  const Problem& p = plan.p;
  for (int64_t r = 0; r < plan.rows; ++r) {
    const RowIndex at = row_index(plan, b, g, r);
    const float sink = sink_score(p, at.h);
    float row_max = sink;
    for (int64_t s = 0; s < plan.splits; ++s) {
      const float split_max = PartialResult(plan, partials + s * plan.partial_floats()).row_max[r];
      row_max = split_max > row_max ? split_max : row_max;
    }
    const float base = row_max == kMasked ? 0.0f : row_max;
    float row_sum = std::exp2(sink - base);
    float* sum = PartialResult(plan, partials).out + r * plan.e;
    for (int64_t s = 0; s < plan.splits; ++s) {
      const PartialResult partial(plan, partials + s * plan.partial_floats());
      const float factor = partial.row_max[r] == row_max ? 1.0f : std::exp2(partial.row_max[r] - base);
      const float* split_sum = partial.out + r * plan.e;
      row_sum += factor * partial.row_sum[r];
      for (int64_t c = 0; c < plan.e; c += W) {
        const vf scaled = load(split_sum + c) * factor;
        store(sum + c, s == 0 ? scaled : load(sum + c) + scaled);
      }
    }
    const int64_t row = (at.b * p.h() + at.h) * p.i() + at.i;
    const RowNormaliser normaliser = row_normaliser(p, row, row_max, row_sum);
    if (row_sum == 0)
      for (int64_t c = 0; c < plan.e; ++c) sum[c] = 0;  // 0 · NaN of a value would leak otherwise
    const View& out = plan.call.out;
    dispatch_dtype(out.dtype, [&](auto* type) {
      store_row(sum, static_cast<decltype(type)>(out.data) + out.at(at.b, at.h, at.i), p.e(),
                plan.dropout.scale * normaliser.factor);
    });
    if (plan.call.row_max) plan.call.row_max[row] = row_max;
    if (plan.call.row_sum) plan.call.row_sum[row] = row_sum;
    plan.call.lse[row] = normaliser.lse;
  }
}

template <class T>
bool decode_as(const Forward& call) {
  const DecodePlan plan(call);
  const Problem& p = call.problem;
  const int64_t heads = p.b() * p.g(), jobs = heads * plan.splits;
  const int64_t floats = plan.partial_floats();
  const auto partials = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(jobs * floats));
  const auto split = [&](int64_t job, int) {
    const int64_t head = job / plan.splits, b = head / p.g(), g = head % p.g();
    run_split<T>(plan, b, g, plan.split_keys(b, job % plan.splits),
                 PartialResult(plan, partials.get() + job * floats));
  };
  const auto combine_splits = [&](int64_t head, int) {
    combine(plan, head / p.g(), head % p.g(), partials.get() + head * plan.splits * floats);
  };
  return parallel(jobs, plan.threads, split) && parallel(heads, plan.threads, combine_splits);
}

}  // namespace
}  // namespace decoding

// Packing the keys pays off only if enough rows share them: more rows for wide keys and for keys that do not fit
// the cache, fewer for a half type, which packing widens once and decoding once per row. And only decode
// splits a long cache of few heads over all cores. The thresholds were measured (dev/LOG.md).
bool prefers_decode(const Problem& p) {
  if (p.g() == 0) return false;
  const int64_t rows = p.group() * p.i();
  if (p.b() * p.g() < 4 && p.j() >= 2048) return rows <= 16;
  const bool half = p.key.dtype != Dtype::f32;
  const int64_t max_rows = half ? 2 + p.d() / 64 : 1 + p.d() / 16;
  const bool beyond_cache = p.j() * p.d() * (half ? 2 : 4) > decoding::kDecodeCacheBytes;
  return rows <= (beyond_cache ? 2 * max_rows : max_rows);
}

bool decode(const Forward& call) {
  const Problem& p = call.problem;
  if (p.b() == 0 || p.h() == 0 || p.i() == 0) return true;
  bool finished = true;
  dispatch_dtype(p.key.dtype,
                 [&](auto* type) { finished = decoding::decode_as<std::remove_pointer_t<decltype(type)>>(call); });
  return finished;
}

}  // namespace limelight::LIMELIGHT_ISA
