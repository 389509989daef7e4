// The two ceilings of a machine: fused multiply-adds in registers, and bytes read from memory. machine.py compiles
// this file with -march=native.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif
typedef float vf __attribute__((vector_size(W * 4)));

vf load(const float* from) {
  vf v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

// 12 independent chains of x·a + b hide the latency of one.
constexpr int kChains = 12;

vf chains(int64_t rounds) {
  vf x[kChains];
  for (int t = 0; t < kChains; ++t) x[t] = static_cast<float>(t) - vf{};
  const vf a = 0.999f - vf{}, b = 0.001f - vf{};
  for (int64_t r = 0; r < rounds; ++r)
    for (int t = 0; t < kChains; ++t) x[t] = x[t] * a + b;
  for (int t = 1; t < kChains; ++t) x[0] += x[t];
  return x[0];
}

// Four streams side by side without prefetch hints read fastest, by measurement (LIMITS.md).
vf read_all(const float* from, int64_t count) {
  constexpr int kStreams = 4;
  vf total[2 * kStreams] = {};
  const int64_t stride = count / kStreams;
  for (int64_t t = 0; t + 2 * W <= stride; t += 2 * W)
    for (int x = 0; x < kStreams; ++x) {
      total[2 * x] += load(from + x * stride + t);
      total[2 * x + 1] += load(from + x * stride + t + W);
    }
  for (int u = 1; u < 2 * kStreams; ++u) total[0] += total[u];
  return total[0];
}

// Small jobs balance threads of different speed. Results go to a volatile, so that no job is optimised away.
template <class Job>
void run(int threads, int64_t jobs, const Job& job) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    volatile float sink = 0;
    for (int64_t at; (at = next.fetch_add(1)) < jobs;) sink = job(at)[0];
    (void)sink;
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace

extern "C" double multiply_add(int threads) {
  constexpr int64_t kRounds = 100'000, kJobs = 16;
  run(threads, threads * kJobs, [](int64_t) { return chains(kRounds); });
  return static_cast<double>(threads * kJobs * kRounds) * kChains * W * 2;
}

extern "C" void read_memory(int threads, const float* from, int64_t floats) {
  constexpr int64_t kFloats = 250'000;
  run(threads, (floats + kFloats - 1) / kFloats, [&](int64_t job) {
    const int64_t left = floats - job * kFloats;
    return read_all(from + job * kFloats, left < kFloats ? left : kFloats);
  });
}
