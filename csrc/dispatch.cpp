#include "dispatch.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace limelight {

#define LIMELIGHT_DECLARE(name) \
  namespace name {              \
  extern const Kernels kernels; \
  }
#ifdef LIMELIGHT_X86
LIMELIGHT_DECLARE(avx512)
LIMELIGHT_DECLARE(avx2)
#endif
#ifdef LIMELIGHT_ARM
LIMELIGHT_DECLARE(neon)
#endif
LIMELIGHT_DECLARE(generic)

std::vector<const Kernels*> runnable_builds() {
  std::vector<const Kernels*> builds;
#ifdef LIMELIGHT_X86
  __builtin_cpu_init();
  const bool fma = __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (fma && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    builds.push_back(&avx512::kernels);
  if (fma && __builtin_cpu_supports("avx2")) builds.push_back(&avx2::kernels);
#endif
#ifdef LIMELIGHT_ARM
  builds.push_back(&neon::kernels);
#endif
  builds.push_back(&generic::kernels);
  return builds;
}

namespace {

const char* requested_isa() {
  const char* requested = std::getenv("LIMELIGHT_ISA");
  return requested && *requested ? requested : nullptr;
}

const Kernels& choose() {
  const std::vector<const Kernels*> builds = runnable_builds();
  const char* requested = requested_isa();
  if (!requested) return *builds.front();
  std::string names;
  for (const Kernels* build : builds) {
    if (std::string(requested) == build->isa) return *build;
    names += (names.empty() ? "" : ", ") + std::string(build->isa);
  }
  throw std::runtime_error("LIMELIGHT_ISA=" + std::string(requested) + " cannot run here, expected one of " +
                           names);
}

// The AVX2 build on CPUs that execute 512-bit vectors as two 256-bit halves (Zen 4), or null: there wide vectors
// gain little, and lose where a call leaves much of their wider panels empty.
const Kernels* choose_narrow() {
#ifdef LIMELIGHT_X86
  __builtin_cpu_init();
  if (!requested_isa() && &chosen_build() == &avx512::kernels && __builtin_cpu_is("amdfam19h"))
    return &avx2::kernels;
#endif
  return nullptr;
}

// Multiply-adds per query, including those on padding.
double padded_work(const Problem& p, int64_t panel) {
  const auto padded = [&](int64_t size) { return static_cast<double>((size + panel - 1) / panel * panel); };
  return padded(p.j()) * static_cast<double>(p.d()) + static_cast<double>(p.j()) * padded(p.e());
}

constexpr double kWideGain = 1.05;  // speed-up of the wide build where both fill their panels (dev/LOG.md)

}  // namespace

const Kernels& chosen_build() {
  static const Kernels& build = choose();
  return build;
}

const Kernels& build_for(const Problem& p) {
  static const Kernels* narrow = choose_narrow();
  const Kernels& wide = chosen_build();
  if (narrow && kWideGain * padded_work(p, narrow->panel) < padded_work(p, wide.panel)) return *narrow;
  return wide;
}

}  // namespace limelight
