// One or few queries against a long cache: the keys are split into stretches, so that all cores work even
// at batch 1, and the stretches' results are combined by their log-sum-exp.
//
// Here the memory is the limit, not the arithmetic. Keys and values are read where they lie, once for all
// the queries of a group (GQA: the group's heads are stacked as rows), from four places at a time. How the
// keys are split depends on the sizes alone, never on the number of threads: the result is the same bit for
// bit.
#include <cmath>
#include <memory>

#include "dropout.h"
#include "kernels.h"
#include "scores.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA {
namespace {

constexpr int64_t kSteps = 64;         // keys that a block takes from each place it reads at,
constexpr int64_t kKeys = 4 * kSteps;  // and in all
constexpr int64_t kLeastKeys = 512;    // fewer are not worth a job of their own
constexpr int64_t kJobs = 128;         // enough for many cores, few enough to combine for nothing
constexpr double kWorthThread = 3e4;   // elements read that pay for waking another thread
constexpr int64_t kFewRows = 8;        // measured: from here on the tiles of forward.cpp are faster,
constexpr int64_t kLongCache = 2048;   // from twice as many with this many keys
constexpr int64_t kTiny = 4096;        // or with this many scores in all
constexpr float kNever = -__builtin_inff();

constexpr int64_t whole_vectors(int64_t count) { return (count + W - 1) / W * W; }

// How one call is cut up. A part is one (batch, key head) and one stretch of its keys.
struct Plan {
  const Forward& call;
  const Problem& p;
  const Dropout dropout;
  const int64_t rows;    // group · i: the queries that share a key head
  const int64_t d, e;    // channels, rounded up to whole vectors
  const int64_t splits;  // stretches of each key head
  int threads;

  explicit Plan(const Forward& f)
      : call(f),
        p(f.problem),
        dropout(f.problem),
        rows(p.group() * p.i()),
        d(whole_vectors(p.d())),
        e(whole_vectors(p.e())),
        splits(splits_of(f.problem)),
        threads(thread_limit()) {
    const double reads = static_cast<double>(p.b() * p.g()) * static_cast<double>(p.j() * (d + e));
    if (reads < kWorthThread * threads) threads = 1 + static_cast<int>(reads / kWorthThread);
  }

  // The keys that any query of batch row b can see. No rule's range depends on the head.
  static Range visible(const Problem& p, int64_t b) {
    if (!p.mask) return {0, p.j()};
    const Range seen = key_range(p.mask.nodes[0], {b, 0, p.i(), p.j()}, 0, p.i());
    return {greater(0, seen.low), smaller(p.j(), seen.high)};
  }

  static int64_t splits_of(const Problem& p) {
    int64_t longest = 0;
    for (int64_t b = 0; b < p.b(); ++b) {
      const Range seen = visible(p, b);
      longest = greater(longest, seen.high - seen.low);
    }
    const int64_t wanted = (kJobs + p.b() * p.g() - 1) / (p.b() * p.g());
    return greater(1, smaller(wanted, longest / kLeastKeys));
  }

  Range stretch(int64_t b, int64_t split) const {
    const Range seen = visible(p, b);
    const int64_t length = greater(0, seen.high - seen.low);
    const int64_t step = (length + splits - 1) / splits;
    const int64_t low = seen.low + smaller(length, split * step);
    return {low, smaller(seen.low + length, low + step)};
  }

  int64_t part_floats() const { return rows * (e + 2); }
};

// What one part found, in scores of base 2: the largest, the sum of 2^(score − largest), and the values
// weighted by that.
struct Part {
  float *largest, *total, *sum;

  Part(const Plan& plan, float* memory)
      : largest(memory), total(memory + plan.rows), sum(memory + 2 * plan.rows) {}
};

// Row r of the stack is query r mod i of the group's head r div i.
struct Place {
  int64_t b, h, i;
};
Place place(const Plan& plan, int64_t b, int64_t g, int64_t r) {
  return {b, g * plan.p.group() + r / plan.p.i(), r % plan.p.i()};
}

// The keys of a block: `steps` from each of `Lanes` places that lie `apart` keys from one another. A core
// draws half as much again from memory when it reads four places side by side as when it reads one.
struct Block {
  int64_t j0, apart, steps;
};
constexpr int kLanes = kKeys / kSteps;

// spread[lane][r] = query row r · that lane's key, not yet added up over the vector's lanes, for `Rows`
// queries. A single query takes turns with two sums, so that eight are under way.
template <int Lanes, int Rows, class T>
LIMELIGHT_INLINE void dot_rows(const float* queries, int64_t query_stride, const T* const (&key)[Lanes], int64_t d,
                               vf* spread, int64_t lane_stride, int64_t row_stride) {
  constexpr int kTurns = 2 / Rows;
  vf sum[kTurns][Rows][Lanes] = {};
  int64_t c = 0;
  for (; c + kTurns * W <= d; c += kTurns * W)
    for (int u = 0; u < kTurns; ++u) {
      vf query[Rows];
      for (int r = 0; r < Rows; ++r) query[r] = load(queries + r * query_stride + c + u * W);
      for (int x = 0; x < Lanes; ++x) {
        const vf channel = load(key[x] + c + u * W);
        for (int r = 0; r < Rows; ++r) sum[u][r][x] += query[r] * channel;
      }
    }
  for (; c < d; c += W)
    for (int x = 0; x < Lanes; ++x) {
      const vf channel = d - c < W ? load_part(key[x] + c, d - c) : load(key[x] + c);
      for (int r = 0; r < Rows; ++r) sum[0][r][x] += load(queries + r * query_stride + c) * channel;
    }
  for (int r = 0; r < Rows; ++r)
    for (int x = 0; x < Lanes; ++x) {
      for (int u = 1; u < kTurns; ++u) sum[0][r][x] += sum[u][r][x];
      spread[x * lane_stride + r * row_stride] = sum[0][r][x];
    }
}

// scores[r][lane][step] of a block; what stands after the last step is of no meaning. Scores of W steps are
// added up at once, by one transposition of what dot_rows left in `spread` (lane, row, W).
template <int Lanes, class T>
void score_block(const Plan& plan, const Block& block, const T* keys, const float* queries, vf* spread,
                 float* scores) {
  const int64_t stride = plan.p.key.stride[2], d = plan.p.d(), rows = plan.rows, padded = plan.d;
  for (int64_t t = 0; t < block.steps; t += W) {
    for (int64_t u = 0; u < smaller(W, block.steps - t); ++u) {
      const T* key[Lanes];
      for (int x = 0; x < Lanes; ++x) key[x] = keys + (block.j0 + x * block.apart + t + u) * stride;
      int64_t r = 0;
      for (; r + 2 <= rows; r += 2)
        dot_rows<Lanes, 2>(queries + r * padded, padded, key, d, spread + r * W + u, rows * W, W);
      if (r < rows) dot_rows<Lanes, 1>(queries + r * padded, padded, key, d, spread + r * W + u, rows * W, W);
    }
    for (int64_t x = 0; x < Lanes; ++x)
      for (int64_t r = 0; r < rows; ++r) {
        vf sum[W];
        for (int u = 0; u < W; ++u) sum[u] = spread[(x * rows + r) * W + u];
        transpose(sum);
        vf total = sum[0];
        for (int u = 1; u < W; ++u) total += sum[u];
        store(scores + r * kKeys + x * kSteps + t, total);
      }
  }
}

// Scores become weights 2^(score − largest); what was summed before is scaled down to the new largest.
template <int Lanes>
void weigh_row(const Plan& plan, const Place& at, const Block& block, float* scores, int64_t r, const Part& part) {
  const auto each = [&](auto&& body) {
    for (int64_t x = 0; x < Lanes; ++x)
      for (int64_t t = 0; t < block.steps; t += W) body(scores + x * kSteps + t, block.j0 + x * block.apart + t);
  };
  vf top = splat(kNever);
  each([&](float* here, int64_t) { top = larger(load(here), top); });
  const float before = part.largest[r], found = max_of(top);
  const float now = found > before ? found : before;
  const float zero = now == kNever ? 0.0f : now;  // nothing allowed yet: −inf − 0 gives weights of 0
  vf total{};
  each([&](float* here, int64_t) {
    const vf weight = exp2(load(here) - zero);
    total += weight;
    store(here, weight);
  });
  if (now != before) {
    const float shrink = std::exp2(before - now);
    part.total[r] *= shrink;
    float* sum = part.sum + r * plan.e;
    for (int64_t c = 0; c < plan.e; c += W) store(sum + c, load(sum + c) * shrink);
    part.largest[r] = now;
  }
  part.total[r] += sum_of(total);
  if (plan.p.dropout > 0) {
    const uint32_t word = plan.dropout.row(at.b * plan.p.h() + at.h, at.i);
    each([&](float* here, int64_t j) { store(here, select(plan.dropout.keep(word, j), load(here), vf{})); });
  }
}

// sum[r] += Σ weights[r][lane] · that lane's value row, for `Rows` sums
template <int Lanes, int Rows, class T>
LIMELIGHT_INLINE void add_rows(const float* weights, const T* const (&value)[Lanes], int64_t e, float* sums,
                               int64_t padded) {
  vf weight[Rows][Lanes];
  for (int r = 0; r < Rows; ++r)
    for (int x = 0; x < Lanes; ++x) weight[r][x] = splat(weights[r * kKeys + x * kSteps]);
  const auto add = [&](int64_t c, const vf(&values)[Lanes]) {
    for (int r = 0; r < Rows; ++r) {
      vf total = load(sums + r * padded + c);
      for (int x = 0; x < Lanes; ++x) total += weight[r][x] * values[x];
      store(sums + r * padded + c, total);
    }
  };
  int64_t c = 0;
  vf values[Lanes];
  for (; c + W <= e; c += W) {
    for (int x = 0; x < Lanes; ++x) values[x] = load(value[x] + c);
    add(c, values);
  }
  if (c < e) {
    for (int x = 0; x < Lanes; ++x) values[x] = load_part(value[x] + c, e - c);
    add(c, values);
  }
}

template <int Lanes, class T>
void add_block(const Plan& plan, const Block& block, const T* values, const float* weights, float* sums) {
  const int64_t stride = plan.p.value.stride[2], e = plan.p.e(), rows = plan.rows, padded = plan.e;
  for (int64_t t = 0; t < block.steps; ++t) {
    const T* value[Lanes];
    for (int x = 0; x < Lanes; ++x) value[x] = values + (block.j0 + x * block.apart + t) * stride;
    int64_t r = 0;
    for (; r + 2 <= rows; r += 2) add_rows<Lanes, 2>(weights + r * kKeys + t, value, e, sums + r * padded, padded);
    if (r < rows) add_rows<Lanes, 1>(weights + r * kKeys + t, value, e, sums + r * padded, padded);
  }
}

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

// Cap, bias, slopes and mask of one row of scores, as far as the call has them.
template <int Lanes>
void shape_row(const Plan& plan, const Place& at, const Block& block, float* scores) {
  const Problem& p = plan.p;
  for (int64_t x = 0; x < Lanes; ++x) {
    const int64_t j0 = block.j0 + x * block.apart;
    float* row = scores + x * kSteps;
    if (adjusts(p)) adjust_row(p, at.b, at.h, at.i, j0, block.steps, row);
    for (int64_t t = block.steps; t % W; ++t) row[t] = kNever;
    if (cover_of_head(plan, at.b, at.h, j0, block.steps) == Cover::all) continue;
    uint64_t words[(kSteps + kWordKeys - 1) / kWordKeys];
    row_bits(p.mask.nodes[0], {at.b, at.h, p.i(), p.j()}, at.i, j0, block.steps, words);
    forbid(row, words, block.steps);
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
  for (int64_t r = 0; r < plan.rows; ++r) {
    const Place at = place(plan, b, g, r);
    float* row = room.scores + r * kKeys;
    shape_row<Lanes>(plan, at, block, row);
    weigh_row<Lanes>(plan, at, block, row, r, part);
  }
  add_block<Lanes>(plan, block, static_cast<const T*>(p.value.data) + p.value.at(b, g, 0), room.scores, part.sum);
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
    lse = empty ? kNever : largest == -kNever ? largest : largest * static_cast<float>(kLn2) + std::log(total);
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
            [&](auto* kind) { finished = decode_as<std::remove_pointer_t<decltype(kind)>>(f); });
  return finished;
}

}  // namespace limelight::LIMELIGHT_ISA
