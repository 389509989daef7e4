// AdamW over all weights of a model in one go, and the norm of all gradients: for small models, a call for each
// tensor costs more than the arithmetic.
#include <cmath>
#include <vector>

#include "kernels.h"
#include "simd.h"
#include "threads.h"

namespace limelight::LIMELIGHT_ISA {
namespace {

constexpr int64_t kPiece = 1 << 14;            // weights of a job
constexpr double kWorthThread = 3.0 * kPiece;  // weights that pay for waking another thread

struct Piece {
  const Learned* of;
  int64_t begin, end;
};

std::vector<Piece> pieces_of(const Learned* all, int64_t count) {
  std::vector<Piece> pieces;
  for (const Learned* one = all; one < all + count; ++one)
    for (int64_t t = 0; t < one->count; t += kPiece) pieces.push_back({one, t, smaller(one->count, t + kPiece)});
  return pieces;
}

template <class Body>
bool each(const std::vector<Piece>& pieces, const Body& body) {
  double weights = 0;
  for (const Piece& piece : pieces) weights += static_cast<double>(piece.end - piece.begin);
  const double threads = 1 + weights / kWorthThread;
  const int most = thread_limit();
  return parallel(static_cast<int64_t>(pieces.size()), threads < most ? static_cast<int>(threads) : most, body);
}

LIMELIGHT_INLINE vf square_root(vf x) {
  vf root;
  for (int t = 0; t < W; ++t) root[t] = __builtin_sqrtf(x[t]);
  return root;
}

}  // namespace

bool sum_squares(const Learned* all, int64_t count, double& total) {
  const std::vector<Piece> pieces = pieces_of(all, count);
  std::vector<double> sums(pieces.size());
  const bool done = each(pieces, [&](int64_t job, int) {
    const Piece& piece = pieces[static_cast<size_t>(job)];
    const float* grad = piece.of->grad;
    vf sum[4] = {};
    int64_t t = piece.begin;
    for (; t + 4 * W <= piece.end; t += 4 * W)
      for (int u = 0; u < 4; ++u) {
        const vf x = load(grad + t + u * W);
        sum[u] += x * x;
      }
    for (; t < piece.end; t += W) {
      const vf x = load_some(grad + t, piece.end - t);
      sum[0] += x * x;
    }
    sums[static_cast<size_t>(job)] = sum_of((sum[0] + sum[1]) + (sum[2] + sum[3]));
  });
  total = 0;
  for (const double sum : sums) total += sum;  // in their order, whoever made them
  return done;
}

bool adamw(const Adamw& call) {
  const std::vector<Piece> pieces = pieces_of(call.all, call.count);
  return each(pieces, [&](int64_t job, int) {
    const Piece& piece = pieces[static_cast<size_t>(job)];
    const Learned& own = *piece.of;
    const auto fading = [&](double beta) { return 1 - std::pow(beta, static_cast<double>(own.step)); };
    const float step = static_cast<float>(call.rate / fading(call.beta1));
    const float root = static_cast<float>(1 / std::sqrt(fading(call.beta2)));
    const float keep = static_cast<float>(1 - call.rate * call.decay), epsilon = static_cast<float>(call.epsilon);
    const float beta2 = static_cast<float>(call.beta2), scale = static_cast<float>(call.scale);
    const float fresh1 = static_cast<float>(1 - call.beta1), fresh2 = static_cast<float>(1 - call.beta2);
    for (int64_t t = piece.begin; t < piece.end; t += W) {
      const int64_t left = piece.end - t;
      const vf grad = load_some(own.grad + t, left) * scale;
      vf first = load_some(own.first + t, left), second = load_some(own.second + t, left);
      first += fresh1 * (grad - first);
      second = beta2 * second + fresh2 * grad * grad;
      const vf weight = load_some(own.weight + t, left) * keep;
      store_some(own.first + t, first, left);
      store_some(own.second + t, second, left);
      store_some(own.weight + t, weight - step * first / (square_root(second) * root + epsilon), left);
    }
  });
}

}  // namespace limelight::LIMELIGHT_ISA
