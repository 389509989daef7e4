// Activations of feed-forward layers, forward and backward: memory-bound, while the library functions they replace
// are compute-bound.
#include <algorithm>

#include "entry_points.h"
#include "simd/vector.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA {
namespace {

constexpr int64_t kValuesPerJob = 8192;  // a few microseconds of work

struct Dual {
  vf value, derivative;
};

// 1/(1 + e^−x); NaN stays NaN.
LIMELIGHT_INLINE vf sigmoid(vf x) {
  vf power = x * splat(-1.4426950408889634f);
  const vf ceiling = splat(126.0f);
  power = power > ceiling ? ceiling : power;
  return 1.0f / (1.0f + exp2(power));
}

// x·σ(2√(2/π)·(x + 0.044715·x³)): the tanh form of gelu.
LIMELIGHT_INLINE Dual gelu_tanh(vf x) {
  const vf square = x * x;
  const vf sigma = sigmoid(x * (splat(1.5957691216057308f) + splat(0.07135481627159594f) * square));
  const vf inner = splat(1.5957691216057308f) + splat(0.21406444881478782f) * square;
  return {x * sigma, sigma + x * sigma * (1.0f - sigma) * inner};
}

// x·Φ(x), with Φ from erfc(u) = e^(−u²)·t·P(t), t = 1/(1 + 0.4u), u = |x|/√2; the error of Φ is at most 8e-8.
LIMELIGHT_INLINE Dual gelu(vf x) {
  const vf magnitude = vabs(x);
  const vf t = 1.0f / (1.0f + splat(0.28284271247461906f) * magnitude);
  vf p = splat(-0.20026464178283224f);
  p = p * t + splat(0.7091709126137941f);
  p = p * t + splat(-0.37094888919461766f);
  p = p * t + splat(0.4683094845379374f);
  p = p * t + splat(0.16180843920205035f);
  p = p * t + splat(0.23192466711720466f);
  const vf gaussian = exp2(x * x * splat(-0.7213475204444817f));
  const vf tail = 0.5f * p * t * gaussian;
  const vf cdf = select((vi)(x > vf{}), 1.0f - tail, tail);
  return {x * cdf, cdf + x * gaussian * splat(0.3989422804014327f)};
}

LIMELIGHT_INLINE Dual silu(vf x) {
  const vf sigma = sigmoid(x);
  return {x * sigma, sigma * (1.0f + x * (1.0f - sigma))};
}

// Calls body(at, lanes) for every vector of [0, count); only the last may have fewer lanes than W.
template <class Body>
LIMELIGHT_INLINE void for_each_vector(int64_t count, const Body& body) {
  int64_t at = 0;
  for (; at + W <= count; at += W) body(at, W);
  if (at < count) body(at, static_cast<int>(count - at));
}

template <class Function>
bool pointwise(const Activation& call, const Function& function) {
  const int64_t total = call.rows * call.width;
  return parallel((total + kValuesPerJob - 1) / kValuesPerJob, thread_limit(), [&](int64_t job, int) {
    const int64_t first = job * kValuesPerJob, count = std::min(kValuesPerJob, total - first);
    const float* x = call.x + first;
    float* out = call.out + first;
    if (!call.grad) {
      for_each_vector(count, [&](int64_t at, int lanes) {
        store_some(out + at, function(load_some(x + at, lanes)).value, lanes);
      });
      return;
    }
    const float* grad = call.grad + first;
    for_each_vector(count, [&](int64_t at, int lanes) {
      store_some(out + at, load_some(grad + at, lanes) * function(load_some(x + at, lanes)).derivative, lanes);
    });
  });
}

// silu(gate)·up. A row of x, and of its gradient, holds gate and then up, `width` values each.
bool gated_activation(const Activation& call) {
  const int64_t width = call.width, step = std::max<int64_t>(1, kValuesPerJob / std::max<int64_t>(1, width));
  return parallel((call.rows + step - 1) / step, thread_limit(), [&](int64_t job, int) {
    const int64_t last = std::min(call.rows, (job + 1) * step);
    for (int64_t row = job * step; row < last; ++row) {
      const float *gate = call.x + row * 2 * width, *up = gate + width;
      if (!call.grad) {
        float* out = call.out + row * width;
        for_each_vector(width, [&](int64_t at, int lanes) {
          store_some(out + at, silu(load_some(gate + at, lanes)).value * load_some(up + at, lanes), lanes);
        });
        continue;
      }
      const float* grad = call.grad + row * width;
      float *grad_gate = call.out + row * 2 * width, *grad_up = grad_gate + width;
      for_each_vector(width, [&](int64_t at, int lanes) {
        const vf g = load_some(grad + at, lanes), u = load_some(up + at, lanes);
        const Dual gated = silu(load_some(gate + at, lanes));
        store_some(grad_gate + at, g * u * gated.derivative, lanes);
        store_some(grad_up + at, g * gated.value, lanes);
      });
    }
  });
}

}  // namespace

bool activation(const Activation& call) {
  switch (call.kind) {
    case ActivationKind::gelu: return pointwise(call, [](vf x) { return gelu(x); });
    case ActivationKind::gelu_tanh: return pointwise(call, [](vf x) { return gelu_tanh(x); });
    default: return gated_activation(call);
  }
}

}  // namespace limelight::LIMELIGHT_ISA
