// The gradients of attention, from the saved output and log-sum-exp: weights are recomputed tile by tile and never
// stored, so memory stays linear in the sequence.
//
// A job is one block of keys of one key head and sweeps over the queries of the whole group. dK and dV of the
// block belong to that job alone. dQ is shared by the blocks of a head, which add to each tile of it in the order
// of the keys: a job waits until all earlier blocks have passed the tile. So five products per tile suffice, there
// are no atomic additions, and the result is the same bit for bit for any number of threads. Jobs start in order,
// hence a job only ever waits for jobs that are running or done.
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
constexpr float kCoarseLse = 256;     // beyond it the rounding of lse is visible in the weights

// The starts of the tiles along an axis, and its end. Tiles have at most `max_tile` positions and do not cross
// documents, which begin at `starts`.
std::vector<int64_t> tile_edges(int64_t size, int64_t max_tile, const int64_t* starts, int64_t count) {
  std::vector<int64_t> edges{0};
  const auto divide_up_to = [&](int64_t end) {
    const int64_t start = edges.back(), tiles = (end - start + max_tile - 1) / max_tile;
    const int64_t step = tiles ? round_up((end - start + tiles - 1) / tiles, NR) : 0;
    for (int64_t at = start + step; at < end; at += step) edges.push_back(at);
    if (end > start) edges.push_back(end);
  };
  for (int64_t t = 1; t < count; ++t)
    if (starts[t] - edges.back() >= kMinDocument && size - starts[t] >= kMinDocument) divide_up_to(starts[t]);
  divide_up_to(size);
  return edges;
}

// Whether the gradient of the bias needs only Σ_j dS, because the bias is the same for all keys.
bool sums_rows(const Backward& call) { return call.grad_bias && call.grad_bias.stride[3] == 0; }

// How a call is divided. A chain is a set of heads that one job sweeps over for each block of keys: one key head,
// or all heads that share a bias, so that no two jobs add to the same element of its gradient.
struct BackwardPlan {
  const Problem& p;
  std::vector<int64_t> rows, keys;
  int64_t chains_b, chains_g;

  explicit BackwardPlan(const Backward& call) : p(call.problem) {
    const MaskNode* documents = outer_documents(p.mask);
    const int64_t count = documents ? documents->count : 0;
    rows = tile_edges(p.i(), kBackwardQueries, documents ? documents->table : nullptr, count);
    keys = tile_edges(p.j(), kBackwardKeys, documents ? documents->table + count + 1 : nullptr, count);
    const View& grad_bias = call.grad_bias;
    const bool by_element = grad_bias && !sums_rows(call);
    chains_b = by_element && grad_bias.stride[0] == 0 ? 1 : p.b();
    chains_g = by_element && grad_bias.stride[1] == 0 ? 1 : p.g();
  }

  int64_t tiles() const { return static_cast<int64_t>(rows.size()) - 1; }
  int64_t blocks() const { return static_cast<int64_t>(keys.size()) - 1; }
  int64_t chains() const { return chains_b * chains_g; }
  Range tile(int64_t t) const { return {rows[t], rows[t + 1]}; }
  Range block(int64_t t) const { return {keys[t], keys[t + 1]}; }
};

constexpr int64_t kDone = std::numeric_limits<int64_t>::max();

// How far each block of a chain has got: the first step that it has not yet passed. A step is a query tile of a
// head.
class Progress {
 public:
  Progress(int64_t chains, int64_t blocks) : blocks_(blocks) {
    if (blocks > 1) steps_ = std::make_unique<std::atomic<int64_t>[]>(static_cast<size_t>(chains * blocks));
  }

  void passed(int64_t chain, int64_t block, int64_t step) {
    if (steps_) steps_[chain * blocks_ + block].store(step, std::memory_order_release);
  }

  // Waits until all blocks before this one have passed the step. The first `settled` of them are known to be done.
  // Returns false if interrupted.
  bool wait(int64_t chain, int64_t block, int64_t step, int64_t& settled) const {
    for (int64_t t = settled; t < block; ++t) {
      const std::atomic<int64_t>& other = steps_[chain * blocks_ + t];
      int64_t other_step;
      for (int64_t spins = 1; (other_step = other.load(std::memory_order_acquire)) <= step; ++spins) {
        if (spins % 64 == 0) std::this_thread::yield();
        if (spins % 1024 == 0 && interrupted()) return false;
      }
      if (other_step == kDone && t == settled) ++settled;
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
  void write_slopes() const;
  void write_sinks() const;
  void write_row_bias() const;
  bool write_queries(int threads) const;

  const Backward& call_;
  const Problem& p_;
  const BackwardPlan plan_;
  Progress progress_;
  std::unique_ptr<float[]> row_floats_, query_floats_;
  std::unique_ptr<double[]> slope_sums_;  // b·h × blocks of keys
  RowTerms terms_;
  GradQuery grad_query_;
};

Gradients::Gradients(const Backward& call)
    : call_(call), p_(call.problem), plan_(call), progress_(plan_.chains(), plan_.blocks()) {
  const int64_t heads = p_.b() * p_.h(), rows = heads * p_.i(), padded_d = round_up(p_.d(), NR);
  row_floats_.reset(new float[static_cast<size_t>(4 * rows)]);
  float* floats = row_floats_.get();
  terms_ = {floats, floats + rows, sums_rows(call) ? floats + 2 * rows : nullptr, nullptr};
  for (int64_t t = 0; t < rows && !terms_.inverse_sum && !p_.lse; ++t)
    if (std::abs(call.lse[t]) > kCoarseLse && std::isfinite(call.lse[t])) terms_.inverse_sum = floats + 3 * rows;
  if (terms_.inverse_sum) split_lse(terms_.minus_lse, terms_.inverse_sum);
  const View& view = call.grad_query;
  if (view.dtype == Dtype::f32 && p_.d() == padded_d) {
    grad_query_ = {static_cast<float*>(view.data), {view.stride[0], view.stride[1], view.stride[2]}};
  } else {
    query_floats_.reset(new float[static_cast<size_t>(rows * padded_d)]);
    grad_query_ = {query_floats_.get(), {p_.h() * p_.i() * padded_d, p_.i() * padded_d, padded_d}};
  }
  if (call.grad_slopes) slope_sums_ = std::make_unique<double[]>(static_cast<size_t>(heads * plan_.blocks()));
}

// Recomputes the forward pass for the maximum and sum of each row, which lse rounds to one number, and stores
// −row_max and 1/row_sum.
void Gradients::split_lse(float* row_max, float* row_sum) const {
  const int64_t rows = p_.b() * p_.h() * p_.i();
  const auto out = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(rows * p_.e()));
  const auto lse = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(rows));
  Forward recomputed{p_, call_.out, lse.get(), row_max, row_sum};
  recomputed.out.data = out.get();
  recomputed.out.stride[3] = 1, recomputed.out.stride[2] = p_.e();
  recomputed.out.stride[1] = p_.i() * p_.e(), recomputed.out.stride[0] = p_.h() * p_.i() * p_.e();
  forward(recomputed);
  for (int64_t t = 0; t < rows; ++t) {
    row_max[t] = row_max[t] == kMasked ? kMasked : -row_max[t];
    row_sum[t] = row_sum[t] == 0 ? 0 : 1 / row_sum[t];
  }
}

// Computes the terms of some rows and sets their dQ to zero.
void Gradients::prepare(int64_t b, int64_t h, Range rows) const {
  const int64_t head = (b * p_.h() + h) * p_.i();
  const int64_t padded_d = round_up(p_.d(), NR);
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
    const float minus_delta = (call_.grad_lse ? call_.grad_lse[head + i] : 0.0f) - hsum(sum);
    terms_.minus_delta[head + i] = p_.lse ? 0.0f : minus_delta;  // a provided lse does not depend on the scores
    if (terms_.grad_sums) terms_.grad_sums[head + i] = 0;
    float* grad_query = grad_query_.row(b, h, i);
    std::fill(grad_query, grad_query + padded_d, 0.0f);
  }
}

// One block of keys, for all heads of a chain.
bool Gradients::sweep(int64_t chain, int64_t block) {
  const int64_t count_b = p_.b() / plan_.chains_b, count_g = p_.g() / plan_.chains_g;
  const int64_t b0 = chain / plan_.chains_g * count_b, g0 = chain % plan_.chains_g * count_g;
  KeyBlock keys(call_, terms_, grad_query_);
  int64_t settled = 0;
  for (int64_t b = b0; b < b0 + count_b; ++b)
    for (int64_t g = g0; g < g0 + count_g; ++g) {
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
  const Range visible = p_.mask ? query_range(p_.mask.nodes[0], extent, span.low, span.high) : Range{0, p_.i()};
  for (int64_t t = 0; t < plan_.tiles(); ++t) {
    const Range rows = plan_.tile(t);
    if (plan_.blocks() == 1) prepare(b, h, rows);
    if (rows.high <= visible.low || rows.low >= visible.high) continue;
    const Tile tile{rows.low, rows.high, span.low, span.high};
    const Cover cover = p_.mask ? tile_cover(p_.mask.nodes[0], extent, tile) : Cover::all;
    if (cover == Cover::none) continue;
    const int64_t step = head * plan_.tiles() + t;
    progress_.passed(chain, block, step);
    if (interrupted() || !progress_.wait(chain, block, step, settled)) return false;
    keys.add(h, rows, cover, slope_sum);
    progress_.passed(chain, block, step + 1);
  }
  return true;
}

// The gradients of the slopes: the sums of all key blocks, added in a fixed order.
void Gradients::write_slopes() const {
  if (!slope_sums_) return;
  std::vector<double> total(static_cast<size_t>(p_.h()));
  const double* sum = slope_sums_.get();
  for (int64_t head = 0; head < p_.b() * p_.h(); ++head)
    for (int64_t t = 0; t < plan_.blocks(); ++t) total[head % p_.h()] += *sum++;
  std::copy(total.begin(), total.end(), call_.grad_slopes);
}

// The gradients of the sinks. A sink is a key with a value of 0: dS = P∘(dlse − D).
void Gradients::write_sinks() const {
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

// The gradient of a bias that is the same for all keys: the row sums, added over the axes that the bias
// broadcasts.
void Gradients::write_row_bias() const {
  if (!terms_.grad_sums) return;
  const View& grad = call_.grad_bias;
  const int64_t count_h = grad.stride[1] ? p_.h() : 1, count_i = grad.stride[2] ? p_.i() : 1;
  const int64_t count_b = grad.stride[0] ? p_.b() : 1;
  std::vector<double> total(static_cast<size_t>(count_b * count_h * count_i));
  const float* sum = terms_.grad_sums;
  for (int64_t b = 0; b < p_.b(); ++b)
    for (int64_t h = 0; h < p_.h(); ++h)
      for (int64_t i = 0; i < p_.i(); ++i)
        total[(b % count_b * count_h + h % count_h) * count_i + i % count_i] += *sum++;
  const double* from = total.data();
  for (int64_t b = 0; b < count_b; ++b)
    for (int64_t h = 0; h < count_h; ++h)
      for (int64_t i = 0; i < count_i; ++i)
        static_cast<float*>(grad.data)[grad.at(b, h, i)] = static_cast<float>(*from++);
}

// Copies dQ from its float32 accumulator to the result tensor.
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

  // Waves of a few chains, within a wave block after block of all its chains: jobs that run at the same time
  // belong to different chains and seldom wait for one another, and the chains of a wave are few enough to stay in
  // cache.
  const int64_t chains = plan_.chains(), width = std::min<int64_t>(threads, chains);
  const bool finished = parallel(chains * blocks, threads, [&](int64_t job, int) {
    const int64_t wave = job / (width * blocks), first = wave * width;
    const int64_t wave_chains = std::min(width, chains - first), rest = job - first * blocks;
    sweep(first + rest % wave_chains, rest / wave_chains);
  });
  if (!finished || !write_queries(threads)) return false;
  write_slopes();
  write_sinks();
  write_row_bias();
  return true;
}

}  // namespace

bool backward(const Backward& call) {
  if (call.problem.b() == 0 || call.problem.g() == 0) return true;
  return Gradients(call).run();
}

}  // namespace limelight::LIMELIGHT_ISA
