// y = x·Wᵀ + bias for a skinny x: every projection of a model that generates one token at a time.
//
// Memory-bound: each weight is read once for all rows. Weights are stored output by output, so a thread reads
// consecutive memory. How the work is divided changes no sum, so the result is the same for any number of threads.
#include <algorithm>

#include "entry_points.h"
#include "simd/vector.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA {
namespace {

constexpr int64_t kWeightsPerJob = 1 << 15;  // about 128 KB
constexpr double kReadsPerThread = 2.5e4;    // weights worth waking another thread for
constexpr int kPair = 2;                     // outputs at a time, so that memory is read almost in order

// lanes[r·W + t] = x row r · weight row t, not yet summed over the lanes, for `Rows` rows and two outputs.
template <int Rows>
LIMELIGHT_INLINE void dot_pair(const SkinnyGemm& call, const float* x, const float* first, const float* second,
                               vf* lanes) {
  constexpr int kUnroll = Rows >= 4 ? 1 : 4 / Rows;  // eight independent sums
  vf sum[kUnroll][Rows][kPair] = {};
  const int64_t channels = call.channels;
  int64_t c = 0;
  for (; c + kUnroll * W <= channels; c += kUnroll * W)
    for (int u = 0; u < kUnroll; ++u) {
      const vf a = load(first + c + u * W), b = load(second + c + u * W);
      for (int r = 0; r < Rows; ++r) {
        const vf input = load(x + r * call.channels + c + u * W);
        sum[u][r][0] += input * a, sum[u][r][1] += input * b;
      }
    }
  for (; c < channels; c += W) {
    const int64_t left = channels - c;
    const vf a = load_some(first + c, left), b = load_some(second + c, left);
    for (int r = 0; r < Rows; ++r) {
      const vf input = load_some(x + r * call.channels + c, left);
      sum[0][r][0] += input * a, sum[0][r][1] += input * b;
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int t = 0; t < kPair; ++t) {
      for (int u = 1; u < kUnroll; ++u) sum[0][r][t] += sum[u][r][t];
      lanes[r * W + t] = sum[0][r][t];
    }
}

// Outputs o … o + count of `Rows` rows; count ≤ W.
template <int Rows>
void output_vector(const SkinnyGemm& call, int64_t row, int64_t o, int64_t count) {
  const float* x = call.x + row * call.channels;
  vf lanes[Rows * W];
  for (int64_t t = 0; t < W; t += kPair) {
    // Beyond the last output the last one is read again and the result discarded.
    const float* weight = call.weight + (o + std::min(t, count - 1)) * call.channels;
    const float* next = call.weight + (o + std::min(t + 1, count - 1)) * call.channels;
    dot_pair<Rows>(call, x, weight, next, lanes + t);
  }
  for (int r = 0; r < Rows; ++r) {
    vf sum[W];
    for (int u = 0; u < W; ++u) sum[u] = lanes[r * W + u];
    vf total = hsum_rows(sum);
    if (call.bias) total += load_some(call.bias + o, count);
    store_some(call.out + (row + r) * call.outputs + o, total, count);
  }
}

}  // namespace

bool skinny_gemm(const SkinnyGemm& call) {
  const double reads = static_cast<double>(call.outputs) * static_cast<double>(call.channels);
  const int threads = static_cast<int>(std::min<double>(thread_limit(), 1 + reads / kReadsPerThread));
  const int64_t step = std::max<int64_t>(1, kWeightsPerJob / std::max<int64_t>(1, call.channels) / W) * W;
  return parallel((call.outputs + step - 1) / step, threads, [&](int64_t job, int) {
    const int64_t last = std::min(call.outputs, (job + 1) * step);
    for (int64_t o = job * step; o < last; o += W) {
      const int64_t count = std::min<int64_t>(W, last - o);
      int64_t row = 0;
      for (; row + 4 <= call.rows; row += 4) output_vector<4>(call, row, o, count);
      if (row + 2 <= call.rows) output_vector<2>(call, row, o, count), row += 2;
      if (row < call.rows) output_vector<1>(call, row, o, count);
    }
  });
}

}  // namespace limelight::LIMELIGHT_ISA
