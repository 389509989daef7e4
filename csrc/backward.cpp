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
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "backward_block.h"
#include "kernels.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA {
namespace {

constexpr int64_t kLeastCut = 32;  // documents shorter than this share tiles

const MaskNode* outer_documents(const MaskNode* node) {
  if (node->rule == Rule::documents) return node;
  if (node->rule != Rule::both) return nullptr;
  const MaskNode* found = outer_documents(node->first);
  return found ? found : outer_documents(node->second);
}

// Where tiles begin along an axis, and its end: pieces of at most `most`, that respect documents.
std::vector<int64_t> cuts(int64_t size, int64_t most, const int64_t* starts, int64_t count) {
  std::vector<int64_t> found{0};
  const auto cut_to = [&](int64_t end) {
    const int64_t start = found.back(), pieces = (end - start + most - 1) / most;
    const int64_t step = pieces ? round_up((end - start + pieces - 1) / pieces, NR) : 0;
    for (int64_t at = start + step; at < end; at += step) found.push_back(at);
    if (end > start) found.push_back(end);
  };
  for (int64_t t = 1; t < count; ++t)
    if (starts[t] - found.back() >= kLeastCut && size - starts[t] >= kLeastCut) cut_to(starts[t]);
  cut_to(size);
  return found;
}

// How a call is cut up. A chain is a set of heads whose key blocks come one after the other: one key head,
// or all those that share a bias and so add to the same gradient.
struct Plan {
  const Problem& p;
  std::vector<int64_t> rows, keys;
  int64_t chains_b, chains_g;

  explicit Plan(const Backward& call) : p(call.problem) {
    const MaskNode* split = p.mask ? outer_documents(p.mask.nodes) : nullptr;
    const int64_t count = split ? split->count : 0;
    rows = cuts(p.i(), kTileQueries, split ? split->table : nullptr, count);
    keys = cuts(p.j(), kTileKeys, split ? split->table + count + 1 : nullptr, count);
    const View& bias = call.grad_bias;
    chains_b = bias && bias.stride[0] == 0 ? 1 : p.b();
    chains_g = bias && bias.stride[1] == 0 ? 1 : p.g();
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
  void prepare(int64_t b, int64_t h, Range rows) const;
  bool sweep(int64_t chain, int64_t block, float* memory);
  bool sweep_head(KeyBlock& keys, int64_t b, int64_t h, int64_t chain, int64_t block, int64_t& settled);
  void add_up() const;
  bool write_queries(int threads) const;

  const Backward& call_;
  const Problem& p_;
  const Plan plan_;
  Progress progress_;
  std::unique_ptr<float[]> row_floats_, query_floats_;
  std::unique_ptr<double[]> sums_;
  RowTerms terms_;
  GradQuery grad_query_;
  bool bias_sums_;
};

Gradients::Gradients(const Backward& call)
    : call_(call), p_(call.problem), plan_(call), progress_(plan_.chains(), plan_.blocks()) {
  const int64_t heads = p_.b() * p_.h(), rows = heads * p_.i(), wide = round_up(p_.d(), NR);
  row_floats_.reset(new float[static_cast<size_t>(2 * rows)]);
  terms_ = {row_floats_.get(), row_floats_.get() + rows};
  const View& view = call.grad_query;
  if (view.dtype == Dtype::f32 && p_.d() == wide) {
    grad_query_ = {static_cast<float*>(view.data), {view.stride[0], view.stride[1], view.stride[2]}};
  } else {
    query_floats_.reset(new float[static_cast<size_t>(rows * wide)]);
    grad_query_ = {query_floats_.get(), {p_.h() * p_.i() * wide, p_.i() * wide, wide}};
  }
  bias_sums_ = call.grad_bias && call.grad_bias.stride[2] == 0 && call.grad_bias.stride[3] == 0;
  if (bias_sums_ || call.grad_slopes)
    sums_ = std::make_unique<double[]>(static_cast<size_t>(2 * heads * plan_.blocks()));
}

// The terms of some rows, and their dQ set to zero.
void Gradients::prepare(int64_t b, int64_t h, Range rows) const {
  const int64_t head = (b * p_.h() + h) * p_.i();
  const int64_t wide = round_up(p_.d(), NR);
  with_type(p_.query.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    for (int64_t i = rows.low; i < rows.high; ++i) {
      const T* out = static_cast<const T*>(call_.out.data) + call_.out.at(b, h, i);
      const T* grad = static_cast<const T*>(call_.grad_out.data) + call_.grad_out.at(b, h, i);
      vf sum{};
      int64_t c = 0;
      for (; c + W <= p_.e(); c += W) sum += load(out + c) * load(grad + c);
      if (c < p_.e()) sum += load_part(out + c, p_.e() - c) * load_part(grad + c, p_.e() - c);
      const float lse = call_.lse[head + i];
      terms_.minus_lse[head + i] = lse == -__builtin_inff() ? lse : -lse * static_cast<float>(kLog2E);
      terms_.minus_delta[head + i] = (call_.grad_lse ? call_.grad_lse[head + i] : 0.0f) - sum_of(sum);
      float* query = grad_query_.row(b, h, i);
      std::fill(query, query + wide, 0.0f);
    }
  });
}

// One block of keys of all heads of a chain.
bool Gradients::sweep(int64_t chain, int64_t block, float* memory) {
  const int64_t many_b = p_.b() / plan_.chains_b, many_g = p_.g() / plan_.chains_g;
  const int64_t b0 = chain / plan_.chains_g * many_b, g0 = chain % plan_.chains_g * many_g;
  KeyBlock keys(call_, terms_, grad_query_, memory);
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

bool Gradients::sweep_head(KeyBlock& keys, int64_t b, int64_t h, int64_t chain, int64_t block,
                           int64_t& settled) {
  const Range span = plan_.block(block);
  const Extent extent{b, h, p_.i(), p_.j()};
  const int64_t head = b * p_.h() + h;
  HeadSums sums;
  if (sums_) {
    double* own = sums_.get() + 2 * (head * plan_.blocks() + block);
    sums = {bias_sums_ ? own : nullptr, own + 1};
  }
  const Range seen = p_.mask ? query_range(p_.mask.nodes[0], extent, span.low, span.high) : Range{0, p_.i()};
  for (int64_t t = 0; t < plan_.tiles(); ++t) {
    const Range rows = plan_.tile(t);
    if (plan_.blocks() == 1) prepare(b, h, rows);
    if (rows.high <= seen.low || rows.low >= seen.high) continue;
    const Tile tile{rows.low, rows.high, span.low, span.high};
    const Cover found = p_.mask ? cover(p_.mask.nodes[0], extent, tile) : Cover::all;
    if (found == Cover::none) continue;
    const int64_t step = head * plan_.tiles() + t;
    progress_.passed(chain, block, step);
    if (interrupted() || !progress_.wait(chain, block, step, settled)) return false;
    keys.add(h, rows, found, sums);
    progress_.passed(chain, block, step + 1);
  }
  return true;
}

// The numbers that a head gave for each block of keys, added in their order.
void Gradients::add_up() const {
  if (!sums_) return;
  const double* own = sums_.get();
  std::vector<double> slopes(static_cast<size_t>(p_.h()));
  std::vector<double> biases(static_cast<size_t>(bias_sums_ ? p_.b() * p_.h() : 0));
  const int64_t* stride = call_.grad_bias.stride;
  for (int64_t b = 0; b < p_.b(); ++b)
    for (int64_t h = 0; h < p_.h(); ++h)
      for (int64_t t = 0; t < plan_.blocks(); ++t, own += 2) {
        slopes[h] -= own[1];
        if (bias_sums_) biases[(stride[0] ? b : 0) * p_.h() + (stride[1] ? h : 0)] += own[0];
      }
  if (call_.grad_slopes) std::copy(slopes.begin(), slopes.end(), call_.grad_slopes);
  if (!bias_sums_) return;
  for (int64_t b = 0; b < (stride[0] ? p_.b() : 1); ++b)
    for (int64_t h = 0; h < (stride[1] ? p_.h() : 1); ++h)
      static_cast<float*>(call_.grad_bias.data)[call_.grad_bias.at(b, h, 0)] =
          static_cast<float>(biases[b * p_.h() + h]);
}

// dQ from where it was gathered to where it was asked for.
bool Gradients::write_queries(int threads) const {
  if (!query_floats_) return true;
  return parallel(p_.b() * p_.h() * plan_.tiles(), threads, [&](int64_t job, int) {
    const int64_t head = job / plan_.tiles(), b = head / p_.h(), h = head % p_.h();
    const Range rows = plan_.tile(job % plan_.tiles());
    with_type(call_.grad_query.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      T* into = static_cast<T*>(call_.grad_query.data) + call_.grad_query.at(b, h, 0);
      for (int64_t i = rows.low; i < rows.high; ++i)
        write_row(grad_query_.row(b, h, i), into + i * call_.grad_query.stride[2], p_.d());
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
    sweep(first + rest % here, rest / here, scratch(KeyBlock::memory_floats(p_)));
  });
  if (!finished || !write_queries(threads)) return false;
  add_up();
  return true;
}

}  // namespace

bool backward(const Backward& call) {
  if (call.problem.b() == 0 || call.problem.h() == 0) return true;
  return Gradients(call).run();
}

}  // namespace limelight::LIMELIGHT_ISA
