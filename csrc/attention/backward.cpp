// The gradients of attention, from the saved output and log-sum-exp: weights are made again, tile by tile,
// never stored, so memory stays linear in the sequence.
//
// A job is one block of keys of one key head; it sweeps over the queries of the whole group. dK and dV
// belong to the job alone. dQ is shared by the blocks of its head, and each tile of it takes them in the
// order of the keys: a job waits until the blocks before its own have passed the tile. So five products a
// tile suffice, nothing is added twice or atomically, and the result is the same bit for bit whatever the
// number of threads. Jobs start in order, hence a job only waits for jobs that are running or done.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "attention/backward_block.h"
#include "attention/segments.h"
#include "entry_points.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA {
namespace {

constexpr int64_t kMinDocument = 32;  // documents shorter than this share tiles
constexpr float kCoarseLse = 256;     // beyond it the rounding of lse shows in the weights

// Where tiles begin along an axis, and its end: pieces of at most `most`, that respect documents.
std::vector<int64_t> cuts(int64_t size, int64_t most, const int64_t* starts, int64_t count) {
  std::vector<int64_t> edges{0};
  const auto cut_to = [&](int64_t end) {
    const int64_t start = edges.back(), pieces = (end - start + most - 1) / most;
    const int64_t step = pieces ? round_up((end - start + pieces - 1) / pieces, NR) : 0;
    for (int64_t at = start + step; at < end; at += step) edges.push_back(at);
    if (end > start) edges.push_back(end);
  };
  for (int64_t t = 1; t < count; ++t)
    if (starts[t] - edges.back() >= kMinDocument && size - starts[t] >= kMinDocument) cut_to(starts[t]);
  cut_to(size);
  return edges;
}

// Whether Σ_j dS is all that the gradient of the bias takes: it is the same for all keys.
bool sums_rows(const Backward& call) { return call.grad_bias && call.grad_bias.stride[3] == 0; }

// How a call is cut up. A chain is a set of heads that one job sweeps over for each block of keys: one key
// head, or all those that share a bias, so that no two jobs add to the same place of its gradient.
struct Plan {
  const Problem& p;
  std::vector<int64_t> rows, keys;
  int64_t chains_b, chains_g;

  explicit Plan(const Backward& call) : p(call.problem) {
    const MaskNode* split = outer_documents(p.mask);
    const int64_t count = split ? split->count : 0;
    rows = cuts(p.i(), kBackwardQueries, split ? split->table : nullptr, count);
    keys = cuts(p.j(), kBackwardKeys, split ? split->table + count + 1 : nullptr, count);
    const View& bias = call.grad_bias;
    const bool shares = bias && !sums_rows(call);
    chains_b = shares && bias.stride[0] == 0 ? 1 : p.b();
    chains_g = shares && bias.stride[1] == 0 ? 1 : p.g();
  }

  int64_t tiles() const { return static_cast<int64_t>(rows.size()) - 1; }
  int64_t blocks() const { return static_cast<int64_t>(keys.size()) - 1; }
  int64_t chains() const { return chains_b * chains_g; }
  Range tile(int64_t t) const { return {rows[t], rows[t + 1]}; }
  Range block(int64_t t) const { return {keys[t], keys[t + 1]}; }
};

constexpr int64_t kDone = std::numeric_limits<int64_t>::max();

// How far each block of a chain has come: the first step that it has not yet passed.
class Progress {
 public:
  Progress(int64_t chains, int64_t blocks) : blocks_(blocks) {
    if (blocks > 1) steps_ = std::make_unique<std::atomic<int64_t>[]>(static_cast<size_t>(chains * blocks));
  }

  void passed(int64_t chain, int64_t block, int64_t step) {
    if (steps_) steps_[chain * blocks_ + block].store(step, std::memory_order_release);
  }

  // Waits until all blocks before this one have passed the step; `settled` of them are known to be done.
  // False if the work was interrupted.
  bool wait(int64_t chain, int64_t block, int64_t step, int64_t& settled) const {
    for (int64_t t = settled; t < block; ++t) {
      const std::atomic<int64_t>& other = steps_[chain * blocks_ + t];
      int64_t at;
      for (int64_t turn = 1; (at = other.load(std::memory_order_acquire)) <= step; ++turn) {
        if (turn % 64 == 0) std::this_thread::yield();
        if (turn % 1024 == 0 && interrupted()) return false;
      }
      if (at == kDone && t == settled) ++settled;
    }
    return true;
  }

 private:
  int64_t blocks_;
  std::unique_ptr<std::atomic<int64_t>[]> steps_;
};

class Gradients {
 public:
  explicit Gradients(const Backward& call);
  bool run();

 private:
  void split_lse(float* row_max, float* row_sum) const;
  void prepare(int64_t b, int64_t h, Range rows) const;
  bool sweep(int64_t chain, int64_t block);
  bool sweep_head(KeyBlock& keys, int64_t b, int64_t h, int64_t chain, int64_t block, int64_t& settled);
  void add_slopes() const;
  void add_sinks() const;
  void add_rows() const;
  bool write_queries(int threads) const;

  const Backward& call_;
  const Problem& p_;
  const Plan plan_;
  Progress progress_;
  std::unique_ptr<float[]> row_floats_, query_floats_;
  std::unique_ptr<double[]> slope_sums_;  // one for each head and block of keys
  RowTerms terms_;
  GradQuery grad_query_;
};

Gradients::Gradients(const Backward& call)
    : call_(call), p_(call.problem), plan_(call), progress_(plan_.chains(), plan_.blocks()) {
  const int64_t heads = p_.b() * p_.h(), rows = heads * p_.i(), wide = round_up(p_.d(), NR);
  row_floats_.reset(new float[static_cast<size_t>(4 * rows)]);
  float* floats = row_floats_.get();
  terms_ = {floats, floats + rows, sums_rows(call) ? floats + 2 * rows : nullptr, nullptr};
  for (int64_t t = 0; t < rows && !terms_.inverse_sum && !p_.lse; ++t)
    if (std::abs(call.lse[t]) > kCoarseLse && std::isfinite(call.lse[t])) terms_.inverse_sum = floats + 3 * rows;
  if (terms_.inverse_sum) split_lse(terms_.minus_lse, terms_.inverse_sum);
  const View& view = call.grad_query;
  if (view.dtype == Dtype::f32 && p_.d() == wide) {
    grad_query_ = {static_cast<float*>(view.data), {view.stride[0], view.stride[1], view.stride[2]}};
  } else {
    query_floats_.reset(new float[static_cast<size_t>(rows * wide)]);
    grad_query_ = {query_floats_.get(), {p_.h() * p_.i() * wide, p_.i() * wide, wide}};
  }
  if (call.grad_slopes) slope_sums_ = std::make_unique<double[]>(static_cast<size_t>(heads * plan_.blocks()));
}

// A second forward pass for what it knew of each row before it rounded that to lse.
void Gradients::split_lse(float* row_max, float* row_sum) const {
  const int64_t rows = p_.b() * p_.h() * p_.i();
  const auto out = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(rows * p_.e()));
  const auto lse = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(rows));
  Forward again{p_, call_.out, lse.get(), row_max, row_sum};
  again.out.data = out.get();
  again.out.stride[3] = 1, again.out.stride[2] = p_.e();
  again.out.stride[1] = p_.i() * p_.e(), again.out.stride[0] = p_.h() * p_.i() * p_.e();
  forward(again);
  for (int64_t t = 0; t < rows; ++t) {
    row_max[t] = row_max[t] == kMasked ? kMasked : -row_max[t];
    row_sum[t] = row_sum[t] == 0 ? 0 : 1 / row_sum[t];
  }
}

// The terms of some rows, and their dQ set to zero.
void Gradients::prepare(int64_t b, int64_t h, Range rows) const {
  const int64_t head = (b * p_.h() + h) * p_.i();
  const int64_t wide = round_up(p_.d(), NR);
  for (int64_t i = rows.low; i < rows.high; ++i) {
    const float* out = static_cast<const float*>(call_.out.data) + call_.out.at(b, h, i);
    const float* grad = static_cast<const float*>(call_.grad_out.data) + call_.grad_out.at(b, h, i);
    prefetch_row(out + kAhead * call_.out.stride[2], p_.e());
    prefetch_row(grad + kAhead * call_.grad_out.stride[2], p_.e());
    vf sum{};
    int64_t c = 0;
    for (; c + W <= p_.e(); c += W) sum += load(out + c) * load(grad + c);
    if (c < p_.e()) sum += load_partial(out + c, p_.e() - c) * load_partial(grad + c, p_.e() - c);
    const double lse = p_.lse ? p_.lse[head + i] : static_cast<double>(call_.lse[head + i]);
    if (!terms_.inverse_sum) terms_.minus_lse[head + i] = static_cast<float>(lse == kMasked ? lse : -lse * kLog2E);
    const float own = (call_.grad_lse ? call_.grad_lse[head + i] : 0.0f) - hsum(sum);
    terms_.minus_delta[head + i] = p_.lse ? 0.0f : own;  // a given lse does not move with the scores
    if (terms_.grad_sums) terms_.grad_sums[head + i] = 0;
    float* query = grad_query_.row(b, h, i);
    std::fill(query, query + wide, 0.0f);
  }
}

// One block of keys of all heads of a chain.
bool Gradients::sweep(int64_t chain, int64_t block) {
  const int64_t many_b = p_.b() / plan_.chains_b, many_g = p_.g() / plan_.chains_g;
  const int64_t b0 = chain / plan_.chains_g * many_b, g0 = chain % plan_.chains_g * many_g;
  KeyBlock keys(call_, terms_, grad_query_);
  int64_t settled = 0;
  for (int64_t b = b0; b < b0 + many_b; ++b)
    for (int64_t g = g0; g < g0 + many_g; ++g) {
      keys.begin(b, g, plan_.block(block));
      for (int64_t h = g * p_.group(); h < (g + 1) * p_.group(); ++h)
        if (!sweep_head(keys, b, h, chain, block, settled)) return false;
      keys.finish();
    }
  progress_.passed(chain, block, kDone);
  return true;
}

bool Gradients::sweep_head(KeyBlock& keys, int64_t b, int64_t h, int64_t chain, int64_t block, int64_t& settled) {
  const Range span = plan_.block(block);
  const Extent extent{b, h, p_.i(), p_.j()};
  const int64_t head = b * p_.h() + h;
  double* slope_sum = slope_sums_ ? slope_sums_.get() + head * plan_.blocks() + block : nullptr;
  const Range seen = p_.mask ? query_range(p_.mask.nodes[0], extent, span.low, span.high) : Range{0, p_.i()};
  for (int64_t t = 0; t < plan_.tiles(); ++t) {
    const Range rows = plan_.tile(t);
    if (plan_.blocks() == 1) prepare(b, h, rows);
    if (rows.high <= seen.low || rows.low >= seen.high) continue;
    const Tile tile{rows.low, rows.high, span.low, span.high};
    const Cover covered = p_.mask ? tile_cover(p_.mask.nodes[0], extent, tile) : Cover::all;
    if (covered == Cover::none) continue;
    const int64_t step = head * plan_.tiles() + t;
    progress_.passed(chain, block, step);
    if (interrupted() || !progress_.wait(chain, block, step, settled)) return false;
    keys.add(h, rows, covered, slope_sum);
    progress_.passed(chain, block, step + 1);
  }
  return true;
}

// The numbers that the blocks of keys gave for the slope of each head, added in their order.
void Gradients::add_slopes() const {
  if (!slope_sums_) return;
  std::vector<double> total(static_cast<size_t>(p_.h()));
  const double* own = slope_sums_.get();
  for (int64_t head = 0; head < p_.b() * p_.h(); ++head)
    for (int64_t t = 0; t < plan_.blocks(); ++t) total[head % p_.h()] += *own++;
  std::copy(total.begin(), total.end(), call_.grad_slopes);
}

// A sink is a key with a value of 0: dS = P∘(dlse − D).
void Gradients::add_sinks() const {
  if (!call_.grad_sinks) return;
  std::vector<double> total(static_cast<size_t>(p_.h()));
  for (int64_t head = 0; head < p_.b() * p_.h(); ++head) {
    const float sink = sink_score(p_, head % p_.h());
    for (int64_t row = head * p_.i(); row < (head + 1) * p_.i() && sink != kMasked; ++row) {
      double weight = std::exp2(static_cast<double>(sink) + static_cast<double>(terms_.minus_lse[row]));
      if (terms_.inverse_sum) weight *= static_cast<double>(terms_.inverse_sum[row]);
      total[static_cast<size_t>(head % p_.h())] += weight * static_cast<double>(terms_.minus_delta[row]);
    }
  }
  std::copy(total.begin(), total.end(), call_.grad_sinks);
}

// The sums of the rows, added over the axes that the bias repeats.
void Gradients::add_rows() const {
  if (!terms_.grad_sums) return;
  const View& grad = call_.grad_bias;
  const int64_t many_h = grad.stride[1] ? p_.h() : 1, many_i = grad.stride[2] ? p_.i() : 1;
  const int64_t many_b = grad.stride[0] ? p_.b() : 1;
  std::vector<double> total(static_cast<size_t>(many_b * many_h * many_i));
  const float* own = terms_.grad_sums;
  for (int64_t b = 0; b < p_.b(); ++b)
    for (int64_t h = 0; h < p_.h(); ++h)
      for (int64_t i = 0; i < p_.i(); ++i)
        total[(b % many_b * many_h + h % many_h) * many_i + i % many_i] += *own++;
  const double* from = total.data();
  for (int64_t b = 0; b < many_b; ++b)
    for (int64_t h = 0; h < many_h; ++h)
      for (int64_t i = 0; i < many_i; ++i)
        static_cast<float*>(grad.data)[grad.at(b, h, i)] = static_cast<float>(*from++);
}

// dQ from where it was gathered to where it was asked for.
bool Gradients::write_queries(int threads) const {
  if (!query_floats_) return true;
  return parallel(p_.b() * p_.h() * plan_.tiles(), threads, [&](int64_t job, int) {
    const int64_t head = job / plan_.tiles(), b = head / p_.h(), h = head % p_.h();
    const Range rows = plan_.tile(job % plan_.tiles());
    dispatch_dtype(call_.grad_query.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      T* into = static_cast<T*>(call_.grad_query.data) + call_.grad_query.at(b, h, 0);
      for (int64_t i = rows.low; i < rows.high; ++i)
        store_row(grad_query_.row(b, h, i), into + i * call_.grad_query.stride[2], p_.d());
    });
  });
}

bool Gradients::run() {
  const int threads = thread_limit();
  const int64_t heads = p_.b() * p_.h(), tiles = plan_.tiles(), blocks = plan_.blocks();
  if (blocks != 1 && !parallel(heads * tiles, threads, [&](int64_t job, int) {
        const int64_t head = job / tiles;
        prepare(head / p_.h(), head % p_.h(), plan_.tile(job % tiles));
      }))
    return false;

  // Key blocks outside, a few chains inside: neighbours in time are of different chains and seldom wait for
  // one another, and the chains in hand are few enough to stay in the cache.
  const int64_t chains = plan_.chains(), width = std::min<int64_t>(threads, chains);
  const bool finished = parallel(chains * blocks, threads, [&](int64_t job, int) {
    const int64_t wave = job / (width * blocks), first = wave * width, here = std::min(width, chains - first);
    const int64_t rest = job - first * blocks;
    sweep(first + rest % here, rest / here);
  });
  if (!finished || !write_queries(threads)) return false;
  add_slopes();
  add_sinks();
  add_rows();
  return true;
}

}  // namespace

bool backward(const Backward& call) {
  if (call.problem.b() == 0 || call.problem.g() == 0) return true;
  return Gradients(call).run();
}

}  // namespace limelight::LIMELIGHT_ISA
