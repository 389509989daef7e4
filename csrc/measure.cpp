// The two ceilings of this machine: fused multiply-adds in registers, and bytes
// read from memory.
#include <chrono>
#include <memory>

#include "kernels.h"
#include "simd.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// `rounds` times 12 independent chains of x·a + b, two operations a lane;
// enough chains to hide latency.
float chains(int64_t rounds) {
  vf x[12];
  for (int t = 0; t < 12; ++t) x[t] = splat(static_cast<float>(t));
  const vf a = splat(0.999f), b = splat(0.001f);
  for (int64_t r = 0; r < rounds; ++r)
    for (int t = 0; t < 12; ++t) x[t] = x[t] * a + b;
  vf total{};
  for (int t = 0; t < 12; ++t) total += x[t];
  return sum_of(total);
}

float read_all(const float* from, int64_t count) {
  vf total[8] = {};
  for (int64_t t = 0; t + 8 * W <= count; t += 8 * W) {
    __builtin_prefetch(from + t + 512);
    if constexpr (W >= 8) __builtin_prefetch(from + t + 512 + 4 * W);
    for (int u = 0; u < 8; ++u) total[u] += load(from + t + u * W);
  }
  for (int u = 1; u < 8; ++u) total[0] += total[u];
  return sum_of(total[0]);
}

}  // namespace

double peak_gflops(int threads, double seconds) {
  const int64_t rounds = 1000000;  // a few milliseconds
  volatile float sink = 0;
  int64_t done = 0;
  const auto start = Clock::now();
  do {
    parallel(threads, threads, [&](int64_t, int) { sink = chains(rounds); });
    done += rounds * threads;
  } while (seconds_since(start) < seconds);
  return static_cast<double>(done) * 12 * W * 2 / seconds_since(start) / 1e9;
}

double read_gbytes(int threads, int64_t bytes, int passes) {
  const int64_t each = bytes / static_cast<int64_t>(sizeof(float)) / threads;
  const auto memory = std::make_unique<float[]>(static_cast<size_t>(each * threads));
  volatile float sink = 0;
  const auto pass = [&] {
    parallel(threads, threads, [&](int64_t t, int) { sink = read_all(memory.get() + t * each, each); });
  };
  pass();
  const auto start = Clock::now();
  for (int t = 0; t < passes; ++t) pass();
  return static_cast<double>(each * threads) * sizeof(float) * passes / seconds_since(start) / 1e9;
}

}  // namespace limelight::LIMELIGHT_ISA
