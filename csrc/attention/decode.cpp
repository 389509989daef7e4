// One or few queries against a long cache: the keys are split, so that all cores work even at batch 1,
// and the partial results are combined by their log-sum-exp (flash-decoding).
//
// Here the memory is the limit, not the arithmetic. Keys and values are read where they lie, once for all
// the queries of a group (GQA: the group's heads are stacked as rows), from four places at a time. How the
// keys are split depends on the sizes alone, never on the number of threads: the result is the same bit for
// bit.
#include <algorithm>
#include <memory>

#include "attention/decode_block.h"
#include "entry_points.h"

namespace limelight::LIMELIGHT_ISA {
namespace decoding {
namespace {

// What the mask leaves of some keys for one head's queries.
Cover cover_of_head(const Plan& plan, int64_t b, int64_t h, int64_t j0, int64_t count) {
  const Problem& p = plan.p;
  if (!p.mask) return Cover::all;
  return tile_cover(p.mask.nodes[0], {b, h, p.i(), p.j()}, {0, p.i(), j0, j0 + count});
}

template <int Lanes>
bool any_allowed(const Plan& plan, int64_t b, int64_t g, const Block& block) {
  for (int64_t h = g * plan.p.group(); h < (g + 1) * plan.p.group(); ++h)
    for (int64_t x = 0; x < Lanes; ++x)
      if (cover_of_head(plan, b, h, block.j0 + x * block.apart, block.steps) != Cover::none) return true;
  return false;
}

// Cap, bias, slopes and mask of one row of scores, as far as the call has them. Gives whether the mask forbids
// any.
template <int Lanes>
bool adjust_and_mask_row(const Plan& plan, const RowIndex& at, const Block& block, float* scores) {
  const Problem& p = plan.p;
  bool masked = false;
  for (int64_t x = 0; x < Lanes; ++x) {
    const int64_t j0 = block.j0 + x * block.apart;
    float* row = scores + x * kLaneKeys;
    if (adjusts(p)) adjust_row(p, at.b, at.h, at.i, j0, block.steps, row);
    for (int64_t t = block.steps; t % W; ++t) row[t] = kMasked;
    if (cover_of_head(plan, at.b, at.h, j0, block.steps) == Cover::all) continue;
    masked = true;
    uint64_t words[(kLaneKeys + kWordKeys - 1) / kWordKeys];
    row_bits(p.mask.nodes[0], {at.b, at.h, p.i(), p.j()}, at.i, j0, block.steps, words);
    apply_mask(row, words, block.steps);
  }
  return masked;
}

template <int Lanes, class T>
bool has_nonfinite_values(const Plan& plan, const Block& block, const T* values) {
  for (int64_t x = 0; x < Lanes; ++x)
    for (int64_t t = 0; t < block.steps; ++t)
      if (!is_finite_row(values + (block.j0 + x * block.apart + t) * plan.p.value.stride[2], plan.p.e()))
        return true;
  return false;
}

// add_block over the allowed keys alone: forbidden ones have no weight, but 0 · ∞ and 0 · NaN are NaN.
template <int Lanes, class T>
void add_allowed(const Plan& plan, int64_t b, int64_t g, const Block& block, const T* values, const float* weights,
                 float* sums) {
  const Problem& p = plan.p;
  for (int64_t r = 0; r < plan.rows; ++r)
    for (int64_t x = 0; x < Lanes; ++x) {
      const RowIndex at = row_index(plan, b, g, r);
      const int64_t j0 = block.j0 + x * block.apart;
      uint64_t words[(kLaneKeys + kWordKeys - 1) / kWordKeys];
      row_bits(p.mask.nodes[0], {at.b, at.h, p.i(), p.j()}, at.i, j0, block.steps, words);
      for (int64_t t = 0; t < block.steps; ++t) {
        if (!bit(words, t)) continue;
        const T* value[1] = {values + (j0 + t) * p.value.stride[2]};
        add_rows<1, 1>(weights + r * kDecodeKeys + x * kLaneKeys + t, value, p.e(), sums + r * plan.e, plan.e);
      }
    }
}

// What a job works in.
struct Workspace {
  float *queries, *scores;
  float* out;  // of the block in hand: sums in blocks keep 100,000 equal keys exact
  vf* spread;

  explicit Workspace(const Plan& plan) {
    Scratch scratch(plan.rows * (plan.d + kDecodeKeys + plan.e + kLanes * W * W));
    queries = scratch.take(plan.rows * plan.d);
    scores = scratch.take(plan.rows * kDecodeKeys);
    out = scratch.take(plan.rows * plan.e);
    spread = reinterpret_cast<vf*>(scratch.take(plan.rows * kLanes * W * W));
  }
};

template <int Lanes, class T>
void visit(const Plan& plan, int64_t b, int64_t g, const Block& block, const Workspace& workspace,
           const Part& part) {
  const Problem& p = plan.p;
  if (p.mask && !any_allowed<Lanes>(plan, b, g, block)) return;
  score_block<Lanes>(plan, block, static_cast<const T*>(p.key.data) + p.key.at(b, g, 0), workspace.queries,
                     workspace.spread, workspace.scores);
  bool masked = false;
  for (int64_t r = 0; r < plan.rows; ++r) {
    const RowIndex at = row_index(plan, b, g, r);
    float* row = workspace.scores + r * kDecodeKeys;
    masked |= adjust_and_mask_row<Lanes>(plan, at, block, row);
    softmax_row<Lanes>(plan, at, block, row, r, part);
  }
  std::fill(workspace.out, workspace.out + plan.rows * plan.e, 0.0f);
  const T* values = static_cast<const T*>(p.value.data) + p.value.at(b, g, 0);
  if (masked && has_nonfinite_values<Lanes>(plan, block, values))
    add_allowed<Lanes>(plan, b, g, block, values, workspace.scores, workspace.out);
  else
    add_block<Lanes>(plan, block, values, workspace.scores, workspace.out);
  for (int64_t t = 0; t < plan.rows * plan.e; t += W)
    store(part.out + t, load(part.out + t) + load(workspace.out + t));
}

template <class T>
void read_queries(const Plan& plan, int64_t b, int64_t g, float* queries) {
  const Problem& p = plan.p;
  for (int64_t r = 0; r < plan.rows; ++r) {
    const RowIndex at = row_index(plan, b, g, r);
    const T* from = static_cast<const T*>(p.query.data) + p.query.at(at.b, at.h, at.i);
    load_row(from, queries + r * plan.d, p.d(), plan.d, query_factor(p));
  }
}

// One part: all the rows of a key head over one split of keys.
template <class T>
void run_split(const Plan& plan, int64_t b, int64_t g, Range keys, const Part& part) {
  const Workspace workspace(plan);
  read_queries<T>(plan, b, g, workspace.queries);
  for (int64_t r = 0; r < plan.rows; ++r) part.row_max[r] = kMasked, part.row_sum[r] = 0;
  for (int64_t t = 0; t < plan.rows * plan.e; ++t) part.out[t] = 0;
  const int64_t apart = (keys.high - keys.low) / kLanes;
  for (int64_t t = 0; t < apart && !interrupted(); t += kLaneKeys)
    visit<kLanes, T>(plan, b, g, {keys.low + t, apart, imin(kLaneKeys, apart - t)}, workspace, part);
  const int64_t last = keys.low + kLanes * apart;
  if (last < keys.high) visit<1, T>(plan, b, g, {last, 0, keys.high - last}, workspace, part);
}

// The splits of one key head, combined in their order: out and lse.
void combine(const Plan& plan, int64_t b, int64_t g, float* parts) {
  const Problem& p = plan.p;
  for (int64_t r = 0; r < plan.rows; ++r) {
    const RowIndex at = row_index(plan, b, g, r);
    const float sink = sink_score(p, at.h);
    float row_max = sink;
    for (int64_t s = 0; s < plan.splits; ++s) {
      const float here = Part(plan, parts + s * plan.part_floats()).row_max[r];
      row_max = here > row_max ? here : row_max;
    }
    const float zero = row_max == kMasked ? 0.0f : row_max;
    float row_sum = std::exp2(sink - zero);
    float* sum = Part(plan, parts).out + r * plan.e;
    for (int64_t s = 0; s < plan.splits; ++s) {
      const Part part(plan, parts + s * plan.part_floats());
      const float factor = part.row_max[r] == row_max ? 1.0f : std::exp2(part.row_max[r] - zero);
      const float* add = part.out + r * plan.e;
      row_sum += factor * part.row_sum[r];
      for (int64_t c = 0; c < plan.e; c += W) {
        const vf scaled = load(add + c) * factor;
        store(sum + c, s == 0 ? scaled : load(sum + c) + scaled);
      }
    }
    const int64_t row = (at.b * p.h() + at.h) * p.i() + at.i;
    const RowEnd end = end_row(p, row, row_max, row_sum);
    if (row_sum == 0)
      for (int64_t c = 0; c < plan.e; ++c) sum[c] = 0;  // 0 · NaN of a value would leak otherwise
    const View& out = plan.call.out;
    dispatch_dtype(out.dtype, [&](auto* type) {
      store_row(sum, static_cast<decltype(type)>(out.data) + out.at(at.b, at.h, at.i), p.e(),
                plan.dropout.grow * end.factor);
    });
    if (plan.call.row_max) plan.call.row_max[row] = row_max;
    if (plan.call.row_sum) plan.call.row_sum[row] = row_sum;
    plan.call.lse[row] = end.lse;
  }
}

template <class T>
bool decode_as(const Forward& f) {
  const Plan plan(f);
  const Problem& p = f.problem;
  const int64_t heads = p.b() * p.g(), jobs = heads * plan.splits;
  const int64_t floats = plan.part_floats();
  const auto parts = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(jobs * floats));
  const auto one = [&](int64_t job, int) {
    const int64_t head = job / plan.splits, b = head / p.g(), g = head % p.g();
    run_split<T>(plan, b, g, plan.split_keys(b, job % plan.splits), Part(plan, parts.get() + job * floats));
  };
  const auto join = [&](int64_t head, int) {
    combine(plan, head / p.g(), head % p.g(), parts.get() + head * plan.splits * floats);
  };
  return parallel(jobs, plan.threads, one) && parallel(heads, plan.threads, join);
}

}  // namespace
}  // namespace decoding

// Few rows that share a key head do not pay for packing the keys: the less so the wider these are, and the farther
// away; the more so in a half type, which is widened once for a packed tile and once for every decoded row. And
// only here is a long cache of few heads split over all cores. Where the one becomes faster was measured
// (dev/LOG.md).
bool prefers_decode(const Problem& p) {
  if (p.g() == 0) return false;
  const int64_t rows = p.group() * p.i();
  if (p.b() * p.g() < 4 && p.j() >= 2048) return rows <= 16;
  const bool half = p.key.dtype != Dtype::f32;
  const int64_t most = half ? 2 + p.d() / 64 : 1 + p.d() / 16;
  const bool beyond_cache = p.j() * p.d() * (half ? 2 : 4) > decoding::kDecodeCacheBytes;
  return rows <= (beyond_cache ? 2 * most : most);
}

bool decode(const Forward& f) {
  bool finished = true;
  if (f.problem.b() == 0 || f.problem.h() == 0 || f.problem.i() == 0) return finished;
  dispatch_dtype(f.problem.key.dtype,
                 [&](auto* kind) { finished = decoding::decode_as<std::remove_pointer_t<decltype(kind)>>(f); });
  return finished;
}

}  // namespace limelight::LIMELIGHT_ISA
