// AdamW over all parameters of a model at once, and the sum of squares of all gradients: in small models the calls
// for each tensor cost more than the arithmetic.
#include <cmath>
#include <vector>

#include "entry_points.h"
#include "simd/vector.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA {
namespace {

constexpr int64_t kUpdatesPerJob = 1 << 14;
constexpr double kUpdatesPerThread = 3.0 * kUpdatesPerJob;  // updates worth waking another thread for

struct Chunk {
  const Parameter* parameter;
  int64_t begin, end;
};

std::vector<Chunk> chunks_of(const Parameter* parameters, int64_t count) {
  std::vector<Chunk> chunks;
  for (const Parameter* p = parameters; p < parameters + count; ++p)
    for (int64_t t = 0; t < p->count; t += kUpdatesPerJob)
      chunks.push_back({p, t, imin(p->count, t + kUpdatesPerJob)});
  return chunks;
}

// Calls body(chunk, its index) for all chunks, in parallel.
template <class Body>
bool for_each(const std::vector<Chunk>& chunks, const Body& body) {
  double updates = 0;
  for (const Chunk& chunk : chunks) updates += static_cast<double>(chunk.end - chunk.begin);
  const double threads = 1 + updates / kUpdatesPerThread;
  const int limit = thread_limit();
  return parallel(static_cast<int64_t>(chunks.size()), threads < limit ? static_cast<int>(threads) : limit,
                  [&](int64_t job, int) { body(chunks[static_cast<size_t>(job)], static_cast<size_t>(job)); });
}

LIMELIGHT_INLINE vf square_root(vf x) {
  vf root;
  for (int t = 0; t < W; ++t) root[t] = __builtin_sqrtf(x[t]);
  return root;
}

}  // namespace

bool sum_squares(const Parameter* parameters, int64_t count, double& total) {
  const std::vector<Chunk> chunks = chunks_of(parameters, count);
  std::vector<double> sums(chunks.size());
  const bool finished = for_each(chunks, [&](const Chunk& chunk, size_t job) {
    const float* grad = chunk.parameter->grad;
    vf sum[4] = {};
    int64_t t = chunk.begin;
    for (; t + 4 * W <= chunk.end; t += 4 * W)
      for (int u = 0; u < 4; ++u) {
        const vf x = load(grad + t + u * W);
        sum[u] += x * x;
      }
    for (; t < chunk.end; t += W) {
      const vf x = load_some(grad + t, chunk.end - t);
      sum[0] += x * x;
    }
    sums[job] = hsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
  });
  total = 0;
  for (const double sum : sums) total += sum;  // in a fixed order: the same bits for any number of threads
  return finished;
}

bool adamw(const AdamWStep& call) {
  const std::vector<Chunk> chunks = chunks_of(call.parameters, call.count);
  return for_each(chunks, [&](const Chunk& chunk, size_t) {
    const Parameter& p = *chunk.parameter;
    const auto bias_correction = [&](double beta) { return 1 - std::pow(beta, static_cast<double>(p.step)); };
    const float step = static_cast<float>(call.learning_rate / bias_correction(call.beta1));
    const float root = static_cast<float>(1 / std::sqrt(bias_correction(call.beta2)));
    const float decay = static_cast<float>(1 - call.learning_rate * call.weight_decay);
    const float epsilon = static_cast<float>(call.epsilon), scale = static_cast<float>(call.grad_scale);
    const float beta2 = static_cast<float>(call.beta2);
    const float one_minus_beta1 = static_cast<float>(1 - call.beta1),
                one_minus_beta2 = static_cast<float>(1 - call.beta2);
    for (int64_t t = chunk.begin; t < chunk.end; t += W) {
      const int64_t left = chunk.end - t;
      const vf grad = load_some(p.grad + t, left) * scale;
      vf mean = load_some(p.mean + t, left), square = load_some(p.square + t, left);
      mean += one_minus_beta1 * (grad - mean);
      square = beta2 * square + one_minus_beta2 * grad * grad;
      const vf weight = load_some(p.weight + t, left) * decay;
      store_some(p.mean + t, mean, left);
      store_some(p.square + t, square, left);
      store_some(p.weight + t, weight - step * mean / (square_root(square) * root + epsilon), left);
    }
  });
}

}  // namespace limelight::LIMELIGHT_ISA
