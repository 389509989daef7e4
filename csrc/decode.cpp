// One or few queries against a long cache: the keys are split into stretches, so that all cores work even
// at batch 1, and the stretches' results are combined by their log-sum-exp.
//
// Here the memory is the limit, not the arithmetic. Keys and values are read where they lie, once for all
// the queries of a group (GQA: the group's heads are stacked as rows), from four places at a time. How the
// keys are split depends on the sizes alone, never on the number of threads: the result is the same bit for
// bit.
#include <memory>

#include "decode_block.h"
#include "kernels.h"

namespace limelight::LIMELIGHT_ISA {
namespace decoding {
namespace {

// What the mask leaves of a stretch of keys for one head's queries.
Cover cover_of_head(const Plan& plan, int64_t b, int64_t h, int64_t j0, int64_t count) {
  const Problem& p = plan.p;
  if (!p.mask) return Cover::all;
  return cover(p.mask.nodes[0], {b, h, p.i(), p.j()}, {0, p.i(), j0, j0 + count});
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
bool shape_row(const Plan& plan, const Place& at, const Block& block, float* scores) {
  const Problem& p = plan.p;
  bool masked = false;
  for (int64_t x = 0; x < Lanes; ++x) {
    const int64_t j0 = block.j0 + x * block.apart;
    float* row = scores + x * kSteps;
    if (adjusts(p)) adjust_row(p, at.b, at.h, at.i, j0, block.steps, row);
    for (int64_t t = block.steps; t % W; ++t) row[t] = kNever;
    if (cover_of_head(plan, at.b, at.h, j0, block.steps) == Cover::all) continue;
    masked = true;
    uint64_t words[(kSteps + kWordKeys - 1) / kWordKeys];
    row_bits(p.mask.nodes[0], {at.b, at.h, p.i(), p.j()}, at.i, j0, block.steps, words);
    forbid(row, words, block.steps);
  }
  return masked;
}

template <int Lanes, class T>
bool holds_wild_values(const Plan& plan, const Block& block, const T* values) {
  for (int64_t x = 0; x < Lanes; ++x)
    for (int64_t t = 0; t < block.steps; ++t)
      if (!finite_row(values + (block.j0 + x * block.apart + t) * plan.p.value.stride[2], plan.p.e())) return true;
  return false;
}

// add_block over the allowed keys alone: forbidden ones have no weight, but 0 · ∞ and 0 · NaN are NaN.
template <int Lanes, class T>
void add_allowed(const Plan& plan, int64_t b, int64_t g, const Block& block, const T* values, const float* weights,
                 float* sums) {
  const Problem& p = plan.p;
  for (int64_t r = 0; r < plan.rows; ++r)
    for (int64_t x = 0; x < Lanes; ++x) {
      const Place at = place(plan, b, g, r);
      const int64_t j0 = block.j0 + x * block.apart;
      uint64_t words[(kSteps + kWordKeys - 1) / kWordKeys];
      row_bits(p.mask.nodes[0], {at.b, at.h, p.i(), p.j()}, at.i, j0, block.steps, words);
      for (int64_t t = 0; t < block.steps; ++t) {
        if (!bit(words, t)) continue;
        const T* value[1] = {values + (j0 + t) * p.value.stride[2]};
        add_rows<1, 1>(weights + r * kKeys + x * kSteps + t, value, p.e(), sums + r * plan.e, plan.e);
      }
    }
}

// What a job works in.
struct Room {
  float *queries, *scores;
  vf* spread;

  explicit Room(const Plan& plan) {
    queries = scratch(static_cast<size_t>(plan.rows * (plan.d + kKeys + kLanes * W * W)));
    scores = queries + plan.rows * plan.d;
    spread = reinterpret_cast<vf*>(scores + plan.rows * kKeys);
  }
};

template <int Lanes, class T>
void visit(const Plan& plan, int64_t b, int64_t g, const Block& block, const Room& room, const Part& part) {
  const Problem& p = plan.p;
  if (p.mask && !any_allowed<Lanes>(plan, b, g, block)) return;
  score_block<Lanes>(plan, block, static_cast<const T*>(p.key.data) + p.key.at(b, g, 0), room.queries, room.spread,
                     room.scores);
  bool masked = false;
  for (int64_t r = 0; r < plan.rows; ++r) {
    const Place at = place(plan, b, g, r);
    float* row = room.scores + r * kKeys;
    masked |= shape_row<Lanes>(plan, at, block, row);
    weigh_row<Lanes>(plan, at, block, row, r, part);
  }
  const T* values = static_cast<const T*>(p.value.data) + p.value.at(b, g, 0);
  if (masked && holds_wild_values<Lanes>(plan, block, values))
    add_allowed<Lanes>(plan, b, g, block, values, room.scores, part.sum);
  else
    add_block<Lanes>(plan, block, values, room.scores, part.sum);
}

template <class T>
void read_queries(const Plan& plan, int64_t b, int64_t g, float* queries) {
  const Problem& p = plan.p;
  for (int64_t r = 0; r < plan.rows; ++r) {
    const Place at = place(plan, b, g, r);
    const T* from = static_cast<const T*>(p.query.data) + p.query.at(at.b, at.h, at.i);
    read_row(from, queries + r * plan.d, p.d(), plan.d, query_factor(p));
  }
}

// One part: all the rows of a key head over one stretch of keys.
template <class T>
void sweep(const Plan& plan, int64_t b, int64_t g, Range keys, const Part& part) {
  const Room room(plan);
  read_queries<T>(plan, b, g, room.queries);
  for (int64_t r = 0; r < plan.rows; ++r) part.largest[r] = kNever, part.total[r] = 0;
  for (int64_t t = 0; t < plan.rows * plan.e; ++t) part.sum[t] = 0;
  const int64_t apart = (keys.high - keys.low) / kLanes;
  for (int64_t t = 0; t < apart && !interrupted(); t += kSteps)
    visit<kLanes, T>(plan, b, g, {keys.low + t, apart, smaller(kSteps, apart - t)}, room, part);
  const int64_t last = keys.low + kLanes * apart;
  if (last < keys.high) visit<1, T>(plan, b, g, {last, 0, keys.high - last}, room, part);
}

// The stretches of one key head, put together in their order: out and lse.
template <class T>
void combine(const Plan& plan, int64_t b, int64_t g, float* parts) {
  const Problem& p = plan.p;
  for (int64_t r = 0; r < plan.rows; ++r) {
    float largest = kNever;
    for (int64_t s = 0; s < plan.splits; ++s) {
      const float here = Part(plan, parts + s * plan.part_floats()).largest[r];
      largest = here > largest ? here : largest;
    }
    const float zero = largest == kNever ? 0.0f : largest;
    float total = 0;
    float* sum = Part(plan, parts).sum + r * plan.e;
    for (int64_t s = 0; s < plan.splits; ++s) {
      const Part part(plan, parts + s * plan.part_floats());
      const float factor = plan.splits == 1 ? 1.0f : std::exp2(part.largest[r] - zero);
      const float* add = part.sum + r * plan.e;
      total += factor * part.total[r];
      for (int64_t c = 0; c < plan.e; c += W) {
        const vf scaled = load(add + c) * factor;
        store(sum + c, s == 0 ? scaled : load(sum + c) + scaled);
      }
    }
    const Place at = place(plan, b, g, r);
    const bool empty = total == 0;
    if (empty)
      for (int64_t c = 0; c < plan.e; ++c) sum[c] = 0;  // 0 · NaN of a value would leak otherwise
    T* out = static_cast<T*>(plan.call.out.data) + plan.call.out.at(at.b, at.h, at.i);
    write_row(sum, out, p.e(), empty ? 0.0f : plan.dropout.grow / total);
    float& lse = plan.call.lse[(at.b * p.h() + at.h) * p.i() + at.i];
    lse = empty ? kNever : largest == kInfinity ? largest : largest * static_cast<float>(kLn2) + std::log(total);
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
    sweep<T>(plan, b, g, plan.stretch(b, job % plan.splits), Part(plan, parts.get() + job * floats));
  };
  const auto join = [&](int64_t head, int) {
    combine<T>(plan, head / p.g(), head % p.g(), parts.get() + head * plan.splits * floats);
  };
  return parallel(jobs, plan.threads, one) && parallel(heads, plan.threads, join);
}

}  // namespace
}  // namespace decoding

constexpr int64_t kFewRows = 8;       // measured: from here on the tiles of forward.cpp are faster,
constexpr int64_t kLongCache = 2048;  // from twice as many with this many keys
constexpr int64_t kTiny = 4096;       // or with this many scores in all

// Few rows that share a key head do not pay for packing the keys, the less so the longer the cache; nor does
// a call so small that any preparation outweighs it.
bool decode_suits(const Problem& p) {
  if (p.g() == 0) return false;
  const int64_t rows = p.group() * p.i();
  const bool tiny = p.b() * p.h() * p.i() * p.j() <= kTiny;
  return rows <= kFewRows || (rows <= 2 * kFewRows && (tiny || p.j() >= kLongCache));
}

bool decode(const Forward& f) {
  bool finished = true;
  if (f.problem.b() == 0 || f.problem.h() == 0 || f.problem.i() == 0) return finished;
  with_type(f.problem.key.dtype,
            [&](auto* kind) { finished = decoding::decode_as<std::remove_pointer_t<decltype(kind)>>(f); });
  return finished;
}

}  // namespace limelight::LIMELIGHT_ISA
