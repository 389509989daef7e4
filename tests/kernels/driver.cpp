// The kernels of one build against a plain float64 reference, over random problems: for instruction sets that the
// machine of the tests cannot run itself (dev/cross.sh), and for the thread sanitizer (dev/tsan.sh).
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
constexpr double kNothing = -INFINITY;

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
  const double size = exponent ? std::ldexp(1 + fraction, exponent - 15) : std::ldexp(fraction, -14);
  return static_cast<float>(bits & 0x8000 ? -size : size);
}
// Round to nearest even, for numbers that a half can hold.
uint16_t to_f16(float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double size = std::fabs(x);
  const int exponent = size < std::ldexp(1, -14) ? -14 : std::ilogb(size);
  const double steps = std::nearbyint(std::ldexp(size, 10 - exponent));
  const int bits = static_cast<int>(steps) + ((exponent + 14) << 10);
  return static_cast<uint16_t>(sign | bits);
}

// A tensor of four axes with rows that may lie apart, and the same numbers in float64.
struct Tensor {
  View view;
  std::vector<unsigned char> bytes;
  std::vector<double> numbers;

  Tensor(Dtype dtype, std::vector<int64_t> size, int64_t apart, const std::function<double()>& draw) {
    int64_t stride = size[3] + apart;
    view.dtype = dtype;
    view.stride[3] = 1;
    for (int axis = 2; axis >= 0; --axis) view.stride[axis] = stride, stride *= size[static_cast<size_t>(axis)];
    for (int axis = 0; axis < 4; ++axis) view.size[axis] = size[static_cast<size_t>(axis)];
    const size_t width = dtype == Dtype::f32 ? 4 : 2;
    bytes.assign(static_cast<size_t>(stride) * width + 64, 0xff);  // NaN between the rows
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
    return numbers[static_cast<size_t>(((b * n[1] + h) * n[2] + i) * n[3] + c)];
  }
};

struct Draw {
  std::mt19937_64 engine;
  explicit Draw(uint64_t seed) : engine(seed) {}
  int64_t whole(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine); }
  bool flip(double probability = 0.5) { return std::bernoulli_distribution(probability)(engine); }
  double normal() { return std::normal_distribution<double>()(engine); }
  template <class T>
  T one_of(std::initializer_list<T> all) {
    return *(all.begin() + whole(0, static_cast<int64_t>(all.size()) - 1));
  }
};

// A mask as a program, and as a rule of (query, key).
struct DrawnMask {
  std::vector<int64_t> program, table;
  std::vector<MaskTable> tables;
  std::function<bool(int64_t, int64_t)> allows = [](int64_t, int64_t) { return true; };

  DrawnMask(Draw& draw, int64_t i, int64_t j) {
    constexpr int64_t kAnyFar = int64_t{1} << 62;
    const int64_t left = draw.whole(0, 40), right = draw.whole(0, 9);
    switch (draw.whole(0, 4)) {
      case 0: return;
      case 1:
        program = {1, -kAnyFar, 0, 1, 0};
        allows = [=](int64_t x, int64_t y) { return y <= x + j - i; };
        return;
      case 2:
        program = {1, -left, right, 1, 0};
        allows = [=](int64_t x, int64_t y) { return y - x - j + i >= -left && y - x - j + i <= right; };
        return;
      case 3:
        program = {10, 1, -left, right, 1, 0};
        allows = [=](int64_t x, int64_t y) { return y - x - j + i < -left || y - x - j + i > right; };
        return;
      default:
        for (int64_t x = 0; x < i; ++x)
          for (int64_t y = 0; y < j; ++y)
            if (draw.flip(0.1)) table.push_back(x), table.push_back(y);
        program = {11, 0};
        tables = {{table.data(), 8, {static_cast<int64_t>(table.size()) / 2, 2}, {2, 1}}};
        std::vector<char> cut(static_cast<size_t>(i * j));
        for (size_t t = 0; t < table.size(); t += 2) cut[static_cast<size_t>(table[t] * j + table[t + 1])] = 1;
        allows = [=](int64_t x, int64_t y) { return !cut[static_cast<size_t>(x * j + y)]; };
    }
  }
};

// Weights of one query: softmax over the allowed keys and the sink, or by the lse that is given; lse is −∞ where
// there are none.
double weigh(const Problem& p, const Tensor& q, const Tensor& k, const DrawnMask& mask, int64_t b, int64_t h,
             int64_t i, std::vector<double>& weights) {
  const int64_t g = h / p.group();
  weights.assign(static_cast<size_t>(p.j()), 0.0);
  double most = kNothing, sum = 0;
  for (int64_t j = 0; j < p.j(); ++j) {
    double score = 0;
    for (int64_t c = 0; c < p.d(); ++c) score += q.exact(b, h, i, c) * k.exact(b, g, j, c);
    score *= p.scale;
    if (p.softcap > 0) score = p.softcap * std::tanh(score / p.softcap);
    if (p.slopes)
      score -= static_cast<double>(p.slopes[h]) * std::fabs(static_cast<double>(i + p.j() - p.i() - j));
    weights[static_cast<size_t>(j)] = mask.allows(i, j) ? score : kNothing;
    most = std::max(most, weights[static_cast<size_t>(j)]);
  }
  if (p.lse) {
    const double lse = p.lse[(b * p.h() + h) * p.i() + i];
    for (double& w : weights) w = std::exp(w - lse);
    return lse;
  }
  if (p.sinks) most = std::max(most, static_cast<double>(p.sinks[h]));
  if (most == kNothing) return weights.assign(static_cast<size_t>(p.j()), 0.0), kNothing;
  for (double& w : weights) sum += w = std::exp(w - most);
  if (p.sinks) sum += std::exp(static_cast<double>(p.sinks[h]) - most);
  for (double& w : weights) w /= sum;
  return most + std::log(sum);
}

struct Failure {
  std::string what;
};

void expect(double value, double exact, double tolerance, const char* what) {
  const bool fine = exact == kNothing ? value == kNothing : std::fabs(value - exact) <= tolerance;
  if (fine) return;
  char text[160];
  std::snprintf(text, sizeof text, "%s: %.9g, expected %.9g within %.2g", what, value, exact, tolerance);
  throw Failure{text};
}

// Forward (or decoding), lens and backward of one random problem.
void run_problem(uint64_t seed) {
  Draw draw(seed);
  const Dtype dtype = draw.one_of({Dtype::f32, Dtype::f32, Dtype::bf16, Dtype::f16});
  const int64_t b = draw.whole(1, 2), g = draw.whole(1, 2), h = g * draw.whole(1, 3);
  const int64_t i = draw.flip(0.3) ? draw.whole(1, 3) : draw.whole(1, 150), j = draw.whole(1, 400);
  const int64_t d = draw.whole(1, 70), e = draw.whole(1, 70), apart = draw.one_of<int64_t>({0, 0, 3});
  const auto normal = [&] { return draw.normal(); };
  const Tensor q(dtype, {b, h, i, d}, apart, normal), k(dtype, {b, g, j, d}, apart, normal);
  const Tensor v(dtype, {b, g, j, e}, 0, normal), grad(Dtype::f32, {b, h, i, e}, 0, normal);
  DrawnMask mask(draw, i, j);
  const int64_t extent[4] = {b, h, i, j};
  const MaskProgram program(mask.program, mask.tables, extent);
  std::vector<float> slopes(static_cast<size_t>(h), 0.05f), sinks(slopes.size()), grad_sinks(slopes.size());
  std::vector<double> given(static_cast<size_t>(b * h * i)), grad_sinks_exact(slopes.size());
  for (float& sink : sinks) sink = static_cast<float>(draw.normal());
  for (double& row : given) row = 10 + draw.normal();

  Problem p;
  p.query = q.view, p.key = k.view, p.value = v.view, p.mask = program.mask();
  p.scale = 1 / std::sqrt(static_cast<double>(d));
  if (draw.flip(0.3)) p.softcap = 3;
  if (draw.flip(0.3)) p.slopes = slopes.data();
  if (draw.flip(0.3))
    p.sinks = sinks.data();
  else if (draw.flip(0.2))
    p.lse = given.data();

  const auto zero = [] { return 0.0; };
  Tensor out(Dtype::f32, {b, h, i, e}, 0, zero), rounded(dtype, {b, h, i, e}, 0, zero),
      seen(dtype, {b, h, i, e}, 0, zero);
  std::vector<float> lse(static_cast<size_t>(b * h * i)), entropy(lse.size()), again(lse.size());
  kernels.forward({p, rounded.view, lse.data()});
  kernels.forward({p, out.view, lse.data()});
  LensForward lens;
  lens.forward = {p, seen.view, again.data()};
  lens.row_stats.entropy = entropy.data();
  const int64_t cuts[2] = {0, i};
  std::vector<double> received(static_cast<size_t>(b * h * j));
  lens.pooled_stats.pieces = cuts, lens.pooled_stats.piece_count = 1, lens.pooled_stats.received = received.data();
  kernels.lens_forward(lens);
  Tensor dq(dtype, {b, h, i, d}, 0, zero), dk(dtype, {b, g, j, d}, 0, zero), dv(dtype, {b, g, j, e}, 0, zero);
  Backward backward;
  backward.problem = p, backward.out = out.view, backward.lse = lse.data(), backward.grad_out = grad.view;
  backward.grad_query = dq.view, backward.grad_key = dk.view, backward.grad_value = dv.view;
  if (p.sinks) backward.grad_sinks = grad_sinks.data();
  kernels.backward(backward);

  // Rounding of a result, and of what enters a sum over many.
  const double unit = dtype == Dtype::f32 ? 1e-5 : dtype == Dtype::bf16 ? 1e-2 : 2e-3;
  std::vector<double> weights, dk_exact(dk.numbers.size()), dv_exact(dv.numbers.size()),
      got(static_cast<size_t>(j));
  std::vector<double> received_exact(received.size());
  for (int64_t x = 0; x < b; ++x)
    for (int64_t y = 0; y < h; ++y)
      for (int64_t row = 0; row < i; ++row) {
        const size_t at = static_cast<size_t>((x * h + y) * i + row);
        const int64_t group = y / (h / g);
        const double exact = weigh(p, q, k, mask, x, y, row, weights);
        expect(lse[at], exact, 2e-5 * (1 + std::fabs(exact)), "lse");
        double spread = 0, inner = 0;
        for (const double w : weights) spread -= w > 0 ? w * std::log(w) : 0;
        expect(entropy[at], spread, 2e-4, "entropy");
        for (int64_t c = 0; c < e; ++c) {
          double sum = 0;
          for (int64_t y2 = 0; y2 < j; ++y2) sum += weights[static_cast<size_t>(y2)] * v.exact(x, group, y2, c);
          expect(out.get(x, y, row, c), sum, 5e-5 * (1 + std::fabs(sum)), "out");
          expect(rounded.get(x, y, row, c), sum, unit * 5 * (1 + std::fabs(sum)), "out in the type of the query");
          expect(seen.get(x, y, row, c), sum, unit * 5 * (1 + std::fabs(sum)), "out with a lens");
          inner += sum * grad.exact(x, y, row, c);
        }
        if (p.lse) inner = 0;  // what is given does not move with the scores
        if (p.sinks)
          grad_sinks_exact[static_cast<size_t>(y)] -= std::exp(static_cast<double>(p.sinks[y]) - exact) * inner;
        std::vector<double> dq_exact(static_cast<size_t>(d));
        for (int64_t key = 0; key < j; ++key) {
          const double w = weights[static_cast<size_t>(key)];
          received_exact[static_cast<size_t>((x * h + y) * j + key)] += w;
          double towards = 0, score = 0;
          for (int64_t c = 0; c < e; ++c) {
            towards += grad.exact(x, y, row, c) * v.exact(x, group, key, c);
            dv_exact[static_cast<size_t>(((x * g + group) * j + key) * e + c)] += w * grad.exact(x, y, row, c);
          }
          for (int64_t c = 0; c < d; ++c) score += q.exact(x, y, row, c) * k.exact(x, group, key, c);
          double slope = w * (towards - inner) * p.scale;
          if (p.softcap > 0) slope *= 1 - std::pow(std::tanh(score * p.scale / p.softcap), 2);
          for (int64_t c = 0; c < d; ++c) {
            dq_exact[static_cast<size_t>(c)] += slope * k.exact(x, group, key, c);
            dk_exact[static_cast<size_t>(((x * g + group) * j + key) * d + c)] += slope * q.exact(x, y, row, c);
          }
        }
        for (int64_t c = 0; c < d; ++c)
          expect(dq.get(x, y, row, c), dq_exact[static_cast<size_t>(c)], unit * 30, "dq");
      }
  size_t at = 0;
  const double many = unit * 30 * std::sqrt(static_cast<double>(i * h));
  dk.each([&](int64_t x, int64_t y, int64_t key, int64_t c) {
    expect(dk.get(x, y, key, c), dk_exact[at++], many, "dk");
  });
  at = 0;
  dv.each([&](int64_t x, int64_t y, int64_t key, int64_t c) {
    expect(dv.get(x, y, key, c), dv_exact[at++], many, "dv");
  });
  for (size_t t = 0; t < grad_sinks.size(); ++t)
    expect(grad_sinks[t], grad_sinks_exact[t], 1e-4 * std::sqrt(static_cast<double>(i * e)), "grad of sinks");
  for (size_t t = 0; t < received.size(); ++t)
    expect(received[t], received_exact[t], 1e-4 * (1 + received_exact[t]), "received");
}

void run_linear(uint64_t seed) {
  Draw draw(seed);
  const int64_t rows = draw.whole(1, 8), outputs = draw.whole(1, 70), channels = draw.whole(1, 90);
  std::vector<float> x(static_cast<size_t>(rows * channels)), weight(static_cast<size_t>(outputs * channels));
  std::vector<float> out(static_cast<size_t>(rows * outputs)), y(x.size());
  for (float& one : x) one = static_cast<float>(draw.normal());
  for (float& one : weight) one = static_cast<float>(draw.normal());
  kernels.skinny_gemm({x.data(), weight.data(), nullptr, out.data(), rows, outputs, channels});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < outputs; ++o) {
      double sum = 0;
      for (int64_t c = 0; c < channels; ++c)
        sum += static_cast<double>(x[static_cast<size_t>(r * channels + c)]) *
               weight[static_cast<size_t>(o * channels + c)];
      expect(out[static_cast<size_t>(r * outputs + o)], sum, 1e-4, "skinny gemm");
    }
  kernels.activation({ActivationKind::gelu, x.data(), nullptr, y.data(), rows, channels});
  for (size_t t = 0; t < x.size(); ++t)
    expect(y[t], 0.5 * x[t] * std::erfc(-static_cast<double>(x[t]) / std::sqrt(2.0)), 1e-6, "gelu");
}

}  // namespace

int main(int count, char** arguments) {
  const auto number = [&](int at, long otherwise) { return count > at ? std::atol(arguments[at]) : otherwise; };
  const long problems = number(1, 200), seed = number(2, 1), callers = number(3, 1);
  std::atomic<int> failures{0};
  const auto work = [&](long caller) {
    for (long t = 0; t < problems; ++t) {
      const uint64_t own = static_cast<uint64_t>(seed + (caller << 32) + t);
      try {
        run_problem(own);
        run_linear(own);
      } catch (const Failure& failure) {
        std::printf("seed %llu: %s\n", static_cast<unsigned long long>(own), failure.what.c_str());
        ++failures;
      }
    }
  };
  std::vector<std::thread> others;
  for (long t = 1; t < callers; ++t) others.emplace_back(work, t);
  work(0);
  for (std::thread& other : others) other.join();
  std::printf("%s: %ld problems, seed %ld, %ld callers, %d failures\n", kernels.isa, problems, seed, callers,
              failures.load());
  return failures ? 1 : 0;
}
