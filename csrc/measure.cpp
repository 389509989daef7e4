// The two ceilings of this machine: fused multiply-adds in registers, and bytes
// read from memory.
#include "kernels.h"
#include "simd.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA {
namespace {

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

// Four places side by side and no hints: the fastest of the ways to read that were tried.
float read_all(const float* from, int64_t count) {
  constexpr int kPlaces = 4;
  vf total[2 * kPlaces] = {};
  const int64_t apart = count / kPlaces;
  for (int64_t t = 0; t + 2 * W <= apart; t += 2 * W)
    for (int x = 0; x < kPlaces; ++x) {
      total[2 * x] += load(from + x * apart + t);
      total[2 * x + 1] += load(from + x * apart + t + W);
    }
  for (int u = 1; u < 2 * kPlaces; ++u) total[0] += total[u];
  return sum_of(total[0]);
}

}  // namespace

bool multiply_add(int threads, double& operations) {
  constexpr int64_t kRounds = 100'000, kPieces = 16;  // small pieces even out threads of different speed
  volatile float sink = 0;
  operations = static_cast<double>(threads * kPieces * kRounds) * 12 * W * 2;
  return parallel(threads * kPieces, threads, [&](int64_t, int) { sink = chains(kRounds); });
}

bool read_memory(int threads, const float* from, int64_t floats) {
  constexpr int64_t kPiece = 250'000;  // floats: pieces even out threads of different speed
  volatile float sink = 0;
  return parallel((floats + kPiece - 1) / kPiece, threads, [&](int64_t t, int) {
    const int64_t left = floats - t * kPiece;
    sink = read_all(from + t * kPiece, left < kPiece ? left : kPiece);
  });
}

}  // namespace limelight::LIMELIGHT_ISA
