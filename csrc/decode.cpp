// One or few queries against a long cache: the keys are split into stretches,
// so that all cores work even at batch 1, and the stretches' results are
// combined by their log-sum-exp.
//
// Here the memory is the limit, not the arithmetic. Keys and values are read
// where they lie, once for all the queries of a group (GQA: the group's heads
// are stacked as rows), W keys at a time. How the keys are split depends on the
// sizes alone, never on the number of threads: the result is the same bit for
// bit.
#include <cmath>
#include <memory>
#include <type_traits>

#include "dropout.h"
#include "kernels.h"
#include "scores.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA {
namespace {

constexpr int64_t kKeys = 128;        // keys of a block: scores of a block stay in the first cache
constexpr int64_t kLeastKeys = 512;   // fewer are not worth a job of their own
constexpr int64_t kJobs = 128;        // enough for many cores, few enough to combine for nothing
constexpr int64_t kAhead = 8;         // keys between the one read and the one fetched
constexpr double kWorthThread = 3e4;  // elements read that pay for waking another thread
constexpr int64_t kMostQueries = 8;   // of a head,
constexpr int64_t kMostRows = 32;     // and of all heads that share a key: beyond, tiles are faster
constexpr float kNever = -__builtin_inff();

constexpr int64_t whole_vectors(int64_t count) { return (count + W - 1) / W * W; }

// How one call is cut up. A part is one (batch, key head) and one stretch of
// its keys.
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

  // The keys that any query of batch row b can see. No rule's range depends on
  // the head.
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

// What one part found, in scores of base 2: the largest, the sum of 2^(score −
// largest), and the values weighted by that. `sum` is not scaled by dropout.
struct Part {
  float *largest, *total, *sum;

  Part(const Plan& plan, float* memory)
      : largest(memory), total(memory + plan.rows), sum(memory + 2 * plan.rows) {}
};

// Row r of the stack is query r mod i of head `first head of the group` + r div
// i.
struct Place {
  int64_t b, h, i;
};
Place place(const Plan& plan, int64_t b, int64_t g, int64_t r) {
  return {b, g * plan.p.group() + r / plan.p.i(), r % plan.p.i()};
}

// Hints that the row `ahead` bytes on will be wanted. Addresses beyond the end
// are never read.
template <class T>
LIMELIGHT_INLINE void fetch_row(const T* row, int64_t channels, int64_t ahead) {
  const auto start = reinterpret_cast<uintptr_t>(row) + static_cast<uintptr_t>(ahead);
  for (uintptr_t at = 0; at < static_cast<uintptr_t>(channels) * sizeof(T); at += 64)
    __builtin_prefetch(reinterpret_cast<const void*>(start + at));
}

// Two rows at a time: the memory is then read almost in the order of its
// addresses, which is faster by a third than eight rows side by side, and the
// queries are loaded half as often as with one.
constexpr int kPair = 2;

// lanes[r][t] = query row r · key row t, still spread over the lanes, for
// `Rows` queries and two keys. Fewer queries take turns with several sums, so
// that eight are always under way.
template <int Rows, class T>
LIMELIGHT_INLINE void dot_pair(const float* queries, int64_t query_stride, const T* const (&key)[kPair],
                               int64_t d, vf* into) {
  constexpr int kTurns = 4 / Rows;
  vf sum[kTurns][Rows][kPair] = {};
  int64_t c = 0;
  for (; c + kTurns * W <= d; c += kTurns * W)
    for (int u = 0; u < kTurns; ++u) {
      const vf first = load(key[0] + c + u * W), second = load(key[1] + c + u * W);
      for (int r = 0; r < Rows; ++r) {
        const vf x = load(queries + r * query_stride + c + u * W);
        sum[u][r][0] += x * first, sum[u][r][1] += x * second;
      }
    }
  for (; c < d; c += W) {
    const int64_t left = d - c;
    const vf first = left < W ? load_part(key[0] + c, left) : load(key[0] + c);
    const vf second = left < W ? load_part(key[1] + c, left) : load(key[1] + c);
    for (int r = 0; r < Rows; ++r) {
      const vf x = load(queries + r * query_stride + c);
      sum[0][r][0] += x * first, sum[0][r][1] += x * second;
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int t = 0; t < kPair; ++t) {
      for (int u = 1; u < kTurns; ++u) sum[0][r][t] += sum[u][r][t];
      into[r * W + t] = sum[0][r][t];
    }
}

// scores[r][t] for the keys of one block; what stands after the last key is of
// no meaning.
template <class T>
void score_block(const Plan& plan, const float* queries, const T* keys, int64_t count, vf* spread,
                 float* scores) {
  const int64_t stride = plan.p.key.stride[2], d = plan.p.d(), rows = plan.rows, padded = plan.d;
  const int64_t ahead = kAhead * stride * static_cast<int64_t>(sizeof(T));
  for (int64_t t = 0; t < count; t += W) {
    for (int64_t u = 0; u < W; u += kPair) {
      const T* key[kPair];
      for (int64_t x = 0; x < kPair; ++x) key[x] = keys + smaller(t + u + x, count - 1) * stride;
      for (int64_t x = 0; x < kPair; ++x) fetch_row(key[x], d, ahead);
      int64_t r = 0;
      for (; r + 4 <= rows; r += 4) dot_pair<4>(queries + r * padded, padded, key, d, spread + r * W + u);
      if (r + 2 <= rows) dot_pair<2>(queries + r * padded, padded, key, d, spread + r * W + u), r += 2;
      if (r < rows) dot_pair<1>(queries + r * padded, padded, key, d, spread + r * W + u);
    }
    for (int64_t r = 0; r < plan.rows; ++r) {  // one transposition adds up the lanes of W keys
      vf sum[W];
      for (int u = 0; u < W; ++u) sum[u] = spread[r * W + u];
      transpose(sum);
      vf total = sum[0];
      for (int u = 1; u < W; ++u) total += sum[u];
      store(scores + r * kKeys + t, total);
    }
  }
}

// Scores become weights 2^(score − largest); what was summed before is scaled
// down to the new largest.
void weigh_row(const Plan& plan, const Place& at, int64_t j0, int64_t count, float* scores, int64_t r,
               const Part& part) {
  vf top = splat(kNever);
  for (int64_t t = 0; t < count; t += W) top = larger(load(scores + t), top);
  const float before = part.largest[r], block = max_of(top);
  const float now = block > before ? block : before;
  const float zero = now == kNever ? 0.0f : now;  // nothing allowed yet: −inf − 0 gives weights of 0
  vf total{};
  for (int64_t t = 0; t < count; t += W) {
    const vf weight = exp2(load(scores + t) - zero);
    total += weight;
    store(scores + t, weight);
  }
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
    for (int64_t t = 0; t < count; t += W)
      store(scores + t, select(plan.dropout.keep(word, j0 + t), load(scores + t), vf{}));
  }
}

// sum[r] += Σ weights[r][t] · value row t, for `Rows` sums and `Keys` value
// rows
template <int Rows, int Keys, class T>
LIMELIGHT_INLINE void add_rows(const Plan& plan, const float* weights, const T* value, float* sums) {
  const int64_t e = plan.p.e(), padded = plan.e;
  const T* row[Keys];
  for (int t = 0; t < Keys; ++t) row[t] = value + t * plan.p.value.stride[2];
  float* into[Rows];
  for (int r = 0; r < Rows; ++r) into[r] = sums + r * padded;
  vf weight[Rows][Keys];
  for (int r = 0; r < Rows; ++r)
    for (int t = 0; t < Keys; ++t) weight[r][t] = splat(weights[r * kKeys + t]);
  const auto add = [&](int64_t c, const vf(&values)[Keys]) {
    for (int r = 0; r < Rows; ++r) {
      vf total = load(into[r] + c);
      for (int t = 0; t < Keys; ++t) total += weight[r][t] * values[t];
      store(into[r] + c, total);
    }
  };
  int64_t c = 0;
  for (; c + W <= e; c += W) {
    vf values[Keys];
    for (int t = 0; t < Keys; ++t) values[t] = load(row[t] + c);
    add(c, values);
  }
  if (c < e) {
    vf values[Keys];
    for (int t = 0; t < Keys; ++t) values[t] = load_part(row[t] + c, e - c);
    add(c, values);
  }
}

template <class T>
void add_block(const Plan& plan, const float* weights, const T* values, int64_t count, float* sums) {
  const int64_t stride = plan.p.value.stride[2], e = plan.p.e();
  const int64_t ahead = kAhead * stride * static_cast<int64_t>(sizeof(T));
  int64_t t = 0;
  const auto some = [&](auto keys) {
    constexpr int kTogether = decltype(keys)::value;
    const T* from = values + t * stride;
    for (int64_t x = 0; x < kTogether; ++x) fetch_row(from + x * stride, e, ahead);
    int64_t r = 0;
    for (; r + 2 <= plan.rows; r += 2)
      add_rows<2, kTogether>(plan, weights + r * kKeys + t, from, sums + r * plan.e);
    if (r < plan.rows) add_rows<1, kTogether>(plan, weights + r * kKeys + t, from, sums + r * plan.e);
    t += kTogether;
  };
  while (t + 4 <= count) some(std::integral_constant<int, 4>{});
  while (t < count) some(std::integral_constant<int, 1>{});
}

// What the mask leaves of a block for one head's queries.
Cover cover_of_head(const Plan& plan, int64_t b, int64_t h, int64_t j0, int64_t j1) {
  const Problem& p = plan.p;
  if (!p.mask) return Cover::all;
  return cover(p.mask.nodes[0], {b, h, p.i(), p.j()}, {0, p.i(), j0, j1});
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
  const Problem& p = plan.p;
  float* queries = scratch(static_cast<size_t>(plan.rows * (plan.d + kKeys + W * W)));
  float* scores = queries + plan.rows * plan.d;
  vf* spread = reinterpret_cast<vf*>(scores + plan.rows * kKeys);
  read_queries<T>(plan, b, g, queries);
  for (int64_t r = 0; r < plan.rows; ++r) part.largest[r] = kNever, part.total[r] = 0;
  for (int64_t t = 0; t < plan.rows * plan.e; ++t) part.sum[t] = 0;
  const T* key = static_cast<const T*>(p.key.data) + p.key.at(b, g, 0);
  const T* value = static_cast<const T*>(p.value.data) + p.value.at(b, g, 0);
  for (int64_t j0 = keys.low; j0 < keys.high && !interrupted(); j0 += kKeys) {
    const int64_t count = smaller(kKeys, keys.high - j0);
    bool any = !p.mask;
    for (int64_t h = g * p.group(); !any && h < (g + 1) * p.group(); ++h)
      any = cover_of_head(plan, b, h, j0, j0 + count) != Cover::none;
    if (!any) continue;
    score_block(plan, queries, key + j0 * p.key.stride[2], count, spread, scores);
    for (int64_t r = 0; r < plan.rows; ++r) {
      const Place at = place(plan, b, g, r);
      float* row = scores + r * kKeys;
      if (adjusts(p)) adjust_row(p, at.b, at.h, at.i, j0, count, row);
      for (int64_t t = count; t % W; ++t) row[t] = kNever;
      if (p.mask && cover_of_head(plan, b, at.h, j0, j0 + count) != Cover::all) {
        uint64_t words[kKeys / kWordKeys];
        row_bits(p.mask.nodes[0], {at.b, at.h, p.i(), p.j()}, at.i, j0, count, words);
        forbid(row, words, count);
      }
      weigh_row(plan, at, j0, count, row, r, part);
    }
    add_block(plan, scores, value + j0 * p.value.stride[2], count, part.sum);
  }
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
    lse = empty                ? kNever
          : largest == -kNever ? largest
                               : largest * static_cast<float>(kLn2) + std::log(total);
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

// Few queries do not pay for packing the keys: rows that share a key head are what counts.
bool decode_suits(const Problem& p) { return p.i() <= kMostQueries && p.group() * p.i() <= kMostRows; }

bool decode(const Forward& f) {
  bool finished = true;
  if (f.problem.b() == 0 || f.problem.h() == 0 || f.problem.i() == 0) return finished;
  with_type(f.problem.key.dtype,
            [&](auto* kind) { finished = decode_as<std::remove_pointer_t<decltype(kind)>>(f); });
  return finished;
}

}  // namespace limelight::LIMELIGHT_ISA
