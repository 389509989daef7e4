// The kernels of one build against a plain float64 reference, over random problems: for instruction sets that the
// test machine may not run itself (dev/cross.sh), and for the thread sanitizer (dev/tsan.sh).
//
//     driver [problems] [seed] [callers]
//
// Each caller is a thread that runs all problems with seeds of its own.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels.h"
#include "masks/program.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA {
extern const Kernels kernels;
}

namespace {

using namespace limelight;

const Kernels& kernels = LIMELIGHT_ISA::kernels;
constexpr double kMasked = -INFINITY;

size_t idx(int64_t at) { return static_cast<size_t>(at); }

// --- random problems --------------------------------------------------------------------------------

float from_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float x;
  std::memcpy(&x, &wide, sizeof x);
  return x;
}
uint16_t to_bf16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
float from_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const double fraction = (bits & 1023) / 1024.0;
  const double magnitude = exponent ? std::ldexp(1 + fraction, exponent - 15) : std::ldexp(fraction, -14);
  return static_cast<float>(bits & 0x8000 ? -magnitude : magnitude);
}
// Rounds to nearest even; x must be in the range of a half.
uint16_t to_f16(float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(x);
  const int exponent = magnitude < std::ldexp(1, -14) ? -14 : std::ilogb(magnitude);
  const double fraction = std::nearbyint(std::ldexp(magnitude, 10 - exponent));
  const int bits = static_cast<int>(fraction) + ((exponent + 14) << 10);
  return static_cast<uint16_t>(sign | bits);
}

// A tensor of four axes, possibly with gaps between its rows, and the same numbers in float64.
struct Tensor {
  View view;
  std::vector<unsigned char> bytes;
  std::vector<double> numbers;

  Tensor(Dtype dtype, std::vector<int64_t> size, int64_t gap, const std::function<double()>& draw) {
    int64_t stride = size[3] + gap;
    view.dtype = dtype;
    view.stride[3] = 1;
    for (int axis = 2; axis >= 0; --axis) view.stride[axis] = stride, stride *= size[idx(axis)];
    for (int axis = 0; axis < 4; ++axis) view.size[axis] = size[idx(axis)];
    const size_t width = dtype == Dtype::f32 ? 4 : 2;
    bytes.assign(idx(stride) * width + 64, 0xff);  // NaN in the gaps
    view.data = bytes.data();
    each([&](int64_t b, int64_t h, int64_t i, int64_t c) {
      put(b, h, i, c, static_cast<float>(draw()));
      numbers.push_back(get(b, h, i, c));
    });
  }

  template <class Body>
  void each(const Body& body) const {
    for (int64_t b = 0; b < view.size[0]; ++b)
      for (int64_t h = 0; h < view.size[1]; ++h)
        for (int64_t i = 0; i < view.size[2]; ++i)
          for (int64_t c = 0; c < view.size[3]; ++c) body(b, h, i, c);
  }
  void put(int64_t b, int64_t h, int64_t i, int64_t c, float x) {
    const int64_t at = view.at(b, h, i) + c;
    if (view.dtype == Dtype::f32)
      std::memcpy(bytes.data() + at * 4, &x, 4);
    else {
      const uint16_t half = view.dtype == Dtype::bf16 ? to_bf16(x) : to_f16(x);
      std::memcpy(bytes.data() + at * 2, &half, 2);
    }
  }
  double get(int64_t b, int64_t h, int64_t i, int64_t c) const {
    const int64_t at = view.at(b, h, i) + c;
    float x;
    uint16_t half;
    if (view.dtype == Dtype::f32) return std::memcpy(&x, bytes.data() + at * 4, 4), x;
    std::memcpy(&half, bytes.data() + at * 2, 2);
    return view.dtype == Dtype::bf16 ? from_bf16(half) : from_f16(half);
  }
  double exact(int64_t b, int64_t h, int64_t i, int64_t c) const {
    const int64_t* n = view.size;
    return numbers[idx(((b * n[1] + h) * n[2] + i) * n[3] + c)];
  }
};

struct Random {
  std::mt19937_64 engine;
  explicit Random(uint64_t seed) : engine(seed) {}
  int64_t integer(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine); }
  bool flip(double probability = 0.5) { return std::bernoulli_distribution(probability)(engine); }
  double normal() { return std::normal_distribution<double>()(engine); }
  template <class T>
  T one_of(std::initializer_list<T> all) {
    return *(all.begin() + integer(0, static_cast<int64_t>(all.size()) - 1));
  }
};

// A mask as a program, and as a function of (query, key).
struct RandomMask {
  std::vector<int64_t> program, table;
  std::vector<MaskTable> tables;
  std::function<bool(int64_t, int64_t)> allows = [](int64_t, int64_t) { return true; };

  RandomMask(Random& random, int64_t i, int64_t j) {
    constexpr int64_t kBand = 1, kNot = 10, kWithout = 11, kFar = int64_t{1} << 62;
    const int64_t left = random.integer(0, 40), right = random.integer(0, 9);
    const auto in_band = [=](int64_t x, int64_t y) { return y - x - j + i >= -left && y - x - j + i <= right; };
    switch (random.integer(0, 4)) {
      case 0: return;
      case 1:
        program = {kBand, -kFar, 0, 1, 0};
        allows = [=](int64_t x, int64_t y) { return y <= x + j - i; };
        return;
      case 2:
        program = {kBand, -left, right, 1, 0};
        allows = in_band;
        return;
      case 3:
        program = {kNot, kBand, -left, right, 1, 0};
        allows = [=](int64_t x, int64_t y) { return !in_band(x, y); };
        return;
      default:
        for (int64_t x = 0; x < i; ++x)
          for (int64_t y = 0; y < j; ++y)
            if (random.flip(0.1)) table.push_back(x), table.push_back(y);
        program = {kWithout, 0};
        tables = {{table.data(), 8, {static_cast<int64_t>(table.size()) / 2, 2}, {2, 1}}};
        std::vector<char> cut(idx(i * j));
        for (size_t t = 0; t < table.size(); t += 2) cut[idx(table[t] * j + table[t + 1])] = 1;
        allows = [=](int64_t x, int64_t y) { return !cut[idx(x * j + y)]; };
    }
  }
};

struct RandomProblem {
  Random random;
  const Dtype dtype;
  const int64_t b, g, h, i, j, d, e, gap;
  const std::function<double()> normal;
  const Tensor q, k, v, grad;
  const RandomMask mask;
  const int64_t extent[4];
  const MaskProgram program;
  std::vector<float> slopes, sinks;
  std::vector<double> lse;  // to normalise by, in some problems
  Problem p;

  explicit RandomProblem(uint64_t seed)
      : random(seed),
        dtype(random.one_of({Dtype::f32, Dtype::f32, Dtype::bf16, Dtype::f16})),
        b(random.integer(1, 2)),
        g(random.integer(1, 2)),
        h(g * random.integer(1, 3)),
        i(random.flip(0.3) ? random.integer(1, 3) : random.integer(1, 150)),
        j(random.integer(1, 400)),
        d(random.integer(1, 70)),
        e(random.integer(1, 70)),
        gap(random.one_of<int64_t>({0, 0, 3})),
        normal([this] { return random.normal(); }),
        q(dtype, {b, h, i, d}, gap, normal),
        k(dtype, {b, g, j, d}, gap, normal),
        v(dtype, {b, g, j, e}, 0, normal),
        grad(Dtype::f32, {b, h, i, e}, 0, normal),
        mask(random, i, j),
        extent{b, h, i, j},
        program(mask.program, mask.tables, extent),
        slopes(idx(h), 0.05f),
        sinks(idx(h)),
        lse(idx(b * h * i)) {
    for (float& sink : sinks) sink = static_cast<float>(random.normal());
    for (double& row : lse) row = 10 + random.normal();
    p.query = q.view, p.key = k.view, p.value = v.view, p.mask = program.mask();
    p.scale = 1 / std::sqrt(static_cast<double>(d));
    if (random.flip(0.3)) p.softcap = 3;
    if (random.flip(0.3)) p.slopes = slopes.data();
    if (random.flip(0.3))
      p.sinks = sinks.data();
    else if (random.flip(0.2))
      p.lse = lse.data();
  }
  RandomProblem(const RandomProblem&) = delete;
};

// --- what the kernels compute -----------------------------------------------------------------------

struct Results {
  Tensor out, rounded, lens_out, dq, dk, dv;
  std::vector<float> lse, lens_lse, entropy, grad_sinks;
  std::vector<double> received;

  // Forward (or decoding), lens and backward.
  explicit Results(const RandomProblem& r)
      : out(zeros(Dtype::f32, {r.b, r.h, r.i, r.e})),
        rounded(zeros(r.dtype, {r.b, r.h, r.i, r.e})),
        lens_out(zeros(r.dtype, {r.b, r.h, r.i, r.e})),
        dq(zeros(r.dtype, {r.b, r.h, r.i, r.d})),
        dk(zeros(r.dtype, {r.b, r.g, r.j, r.d})),
        dv(zeros(r.dtype, {r.b, r.g, r.j, r.e})),
        lse(idx(r.b * r.h * r.i)),
        lens_lse(lse.size()),
        entropy(lse.size()),
        grad_sinks(idx(r.h)),
        received(idx(r.b * r.h * r.j)) {
    kernels.forward({r.p, rounded.view, lse.data()});
    kernels.forward({r.p, out.view, lse.data()});
    const int64_t pieces[2] = {0, r.i};
    LensForward lens;
    lens.forward = {r.p, lens_out.view, lens_lse.data()};
    lens.row_stats.entropy = entropy.data();
    lens.pooled_stats.pieces = pieces, lens.pooled_stats.piece_count = 1;
    lens.pooled_stats.received = received.data();
    kernels.lens_forward(lens);
    Backward backward;
    backward.problem = r.p, backward.out = out.view, backward.lse = lse.data(), backward.grad_out = r.grad.view;
    backward.grad_query = dq.view, backward.grad_key = dk.view, backward.grad_value = dv.view;
    if (r.p.sinks) backward.grad_sinks = grad_sinks.data();
    kernels.backward(backward);
  }
  Results(const Results&) = delete;

  static Tensor zeros(Dtype dtype, std::vector<int64_t> size) {
    return Tensor(dtype, std::move(size), 0, [] { return 0.0; });
  }
};

// --- the reference ----------------------------------------------------------------------------------

struct Failure {
  std::string what;
};

void expect(double value, double exact, double tolerance, const char* what) {
  const bool agrees = exact == kMasked ? value == kMasked : std::fabs(value - exact) <= tolerance;
  if (agrees) return;
  char text[160];
  std::snprintf(text, sizeof text, "%s: %.9g, expected %.9g within %.2g", what, value, exact, tolerance);
  throw Failure{text};
}

// The weights of one query: softmax over the allowed keys and the sink, or normalised by the lse of the problem.
// Returns the lse, which is −∞ where no key is allowed.
double exact_weights(const RandomProblem& r, int64_t b, int64_t h, int64_t i, std::vector<double>& weights) {
  const Problem& p = r.p;
  const int64_t g = h / p.group();
  weights.assign(idx(r.j), 0.0);
  double row_max = kMasked, sum = 0;
  for (int64_t j = 0; j < r.j; ++j) {
    double score = 0;
    for (int64_t c = 0; c < r.d; ++c) score += r.q.exact(b, h, i, c) * r.k.exact(b, g, j, c);
    score *= p.scale;
    if (p.softcap > 0) score = p.softcap * std::tanh(score / p.softcap);
    if (p.slopes) score -= static_cast<double>(p.slopes[h]) * std::fabs(static_cast<double>(i + r.j - r.i - j));
    weights[idx(j)] = r.mask.allows(i, j) ? score : kMasked;
    row_max = std::max(row_max, weights[idx(j)]);
  }
  if (p.lse) {
    const double lse = p.lse[(b * r.h + h) * r.i + i];
    for (double& w : weights) w = std::exp(w - lse);
    return lse;
  }
  if (p.sinks) row_max = std::max(row_max, static_cast<double>(p.sinks[h]));
  if (row_max == kMasked) return weights.assign(idx(r.j), 0.0), kMasked;
  for (double& w : weights) sum += w = std::exp(w - row_max);
  if (p.sinks) sum += std::exp(static_cast<double>(p.sinks[h]) - row_max);
  for (double& w : weights) w /= sum;
  return row_max + std::log(sum);
}

// Results that are sums over queries, added up in float64.
struct ExactSums {
  std::vector<double> dk, dv, grad_sinks, received;

  explicit ExactSums(const Results& results)
      : dk(results.dk.numbers.size()),
        dv(results.dv.numbers.size()),
        grad_sinks(results.grad_sinks.size()),
        received(results.received.size()) {}
};

// Tolerance of a result in this dtype.
double unit(Dtype dtype) { return dtype == Dtype::f32 ? 1e-5 : dtype == Dtype::bf16 ? 1e-2 : 2e-3; }

// Checks the outputs of one query. Returns Σ_e out·grad_out.
double check_outputs(const RandomProblem& r, const Results& results, const std::vector<double>& weights, int64_t b,
                     int64_t h, int64_t i) {
  double delta = 0;
  for (int64_t c = 0; c < r.e; ++c) {
    double sum = 0;
    for (int64_t j = 0; j < r.j; ++j) sum += weights[idx(j)] * r.v.exact(b, h / r.p.group(), j, c);
    expect(results.out.get(b, h, i, c), sum, 5e-5 * (1 + std::fabs(sum)), "out");
    const double tolerance = unit(r.dtype) * 5 * (1 + std::fabs(sum));
    expect(results.rounded.get(b, h, i, c), sum, tolerance, "out in the dtype of the query");
    expect(results.lens_out.get(b, h, i, c), sum, tolerance, "out with a lens");
    delta += sum * r.grad.exact(b, h, i, c);
  }
  return delta;
}

// Checks all results of one query, and adds its share to the sums over queries.
void check_query(const RandomProblem& r, const Results& results, int64_t b, int64_t h, int64_t i,
                 ExactSums& sums) {
  const Problem& p = r.p;
  const size_t row = idx((b * r.h + h) * r.i + i);
  const int64_t g = h / p.group();
  std::vector<double> weights, dq(idx(r.d));
  const double lse = exact_weights(r, b, h, i, weights);
  expect(results.lse[row], lse, 2e-5 * (1 + std::fabs(lse)), "lse");
  double entropy = 0;
  for (const double w : weights) entropy -= w > 0 ? w * std::log(w) : 0;
  expect(results.entropy[row], entropy, 2e-4, "entropy");
  double delta = check_outputs(r, results, weights, b, h, i);
  if (p.lse) delta = 0;  // an lse of the problem does not depend on the scores
  if (p.sinks) sums.grad_sinks[idx(h)] -= std::exp(static_cast<double>(p.sinks[h]) - lse) * delta;
  for (int64_t j = 0; j < r.j; ++j) {
    const double w = weights[idx(j)];
    const int64_t key = (b * r.g + g) * r.j + j;
    sums.received[idx((b * r.h + h) * r.j + j)] += w;
    double grad_weight = 0, score = 0;
    for (int64_t c = 0; c < r.e; ++c) {
      grad_weight += r.grad.exact(b, h, i, c) * r.v.exact(b, g, j, c);
      sums.dv[idx(key * r.e + c)] += w * r.grad.exact(b, h, i, c);
    }
    for (int64_t c = 0; c < r.d; ++c) score += r.q.exact(b, h, i, c) * r.k.exact(b, g, j, c);
    double grad_score = w * (grad_weight - delta) * p.scale;
    if (p.softcap > 0) grad_score *= 1 - std::pow(std::tanh(score * p.scale / p.softcap), 2);
    for (int64_t c = 0; c < r.d; ++c) {
      dq[idx(c)] += grad_score * r.k.exact(b, g, j, c);
      sums.dk[idx(key * r.d + c)] += grad_score * r.q.exact(b, h, i, c);
    }
  }
  for (int64_t c = 0; c < r.d; ++c) expect(results.dq.get(b, h, i, c), dq[idx(c)], unit(r.dtype) * 30, "dq");
}

void check_sums(const RandomProblem& r, const Results& results, const ExactSums& sums) {
  const double tolerance = unit(r.dtype) * 30 * std::sqrt(static_cast<double>(r.i * r.h));
  size_t at = 0;
  results.dk.each([&](int64_t b, int64_t g, int64_t j, int64_t c) {
    expect(results.dk.get(b, g, j, c), sums.dk[at++], tolerance, "dk");
  });
  at = 0;
  results.dv.each([&](int64_t b, int64_t g, int64_t j, int64_t c) {
    expect(results.dv.get(b, g, j, c), sums.dv[at++], tolerance, "dv");
  });
  const double sink_tolerance = 1e-4 * std::sqrt(static_cast<double>(r.i * r.e));
  for (size_t t = 0; t < sums.grad_sinks.size(); ++t)
    expect(results.grad_sinks[t], sums.grad_sinks[t], sink_tolerance, "grad of sinks");
  for (size_t t = 0; t < sums.received.size(); ++t)
    expect(results.received[t], sums.received[t], 1e-4 * (1 + sums.received[t]), "received");
}

void check_attention(uint64_t seed) {
  const RandomProblem problem(seed);
  const Results results(problem);
  ExactSums sums(results);
  for (int64_t b = 0; b < problem.b; ++b)
    for (int64_t h = 0; h < problem.h; ++h)
      for (int64_t i = 0; i < problem.i; ++i) check_query(problem, results, b, h, i, sums);
  check_sums(problem, results, sums);
}

void check_linear(uint64_t seed) {
  Random random(seed);
  const int64_t rows = random.integer(1, 8), outputs = random.integer(1, 70), channels = random.integer(1, 90);
  std::vector<float> x(idx(rows * channels)), weight(idx(outputs * channels));
  std::vector<float> out(idx(rows * outputs)), y(x.size());
  for (float& number : x) number = static_cast<float>(random.normal());
  for (float& number : weight) number = static_cast<float>(random.normal());
  kernels.skinny_gemm({x.data(), weight.data(), nullptr, out.data(), rows, outputs, channels});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < outputs; ++o) {
      double sum = 0;
      for (int64_t c = 0; c < channels; ++c)
        sum += static_cast<double>(x[idx(r * channels + c)]) * weight[idx(o * channels + c)];
      expect(out[idx(r * outputs + o)], sum, 1e-4, "skinny gemm");
    }
  kernels.activation({ActivationKind::gelu, x.data(), nullptr, y.data(), rows, channels});
  for (size_t t = 0; t < x.size(); ++t)
    expect(y[t], 0.5 * x[t] * std::erfc(-static_cast<double>(x[t]) / std::sqrt(2.0)), 1e-6, "gelu");
}

}  // namespace

int main(int count, char** arguments) {
  const auto number = [&](int at, long fallback) { return count > at ? std::atol(arguments[at]) : fallback; };
  const long problems = number(1, 200), first_seed = number(2, 1), callers = number(3, 1);
  std::atomic<int> failures{0};
  const auto work = [&](long caller) {
    for (long t = 0; t < problems; ++t) {
      const uint64_t seed = static_cast<uint64_t>(first_seed + (caller << 32) + t);
      try {
        check_attention(seed);
        check_linear(seed);
      } catch (const Failure& failure) {
        std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), failure.what.c_str());
        ++failures;
      }
    }
  };
  std::vector<std::thread> others;
  for (long t = 1; t < callers; ++t) others.emplace_back(work, t);
  work(0);
  for (std::thread& other : others) other.join();
  std::printf("%s: %ld problems, seed %ld, %ld callers, %d failures\n", kernels.isa, problems, first_seed, callers,
              failures.load());
  return failures ? 1 : 0;
}
