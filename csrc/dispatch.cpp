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

std::vector<const Kernels*> runnable() {
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

const char* wanted_isa() {
  const char* wanted = std::getenv("LIMELIGHT_ISA");
  return wanted && *wanted ? wanted : nullptr;
}

const Kernels& choose() {
  const std::vector<const Kernels*> builds = runnable();
  const char* wanted = wanted_isa();
  if (!wanted) return *builds.front();
  std::string names;
  for (const Kernels* build : builds) {
    if (std::string(wanted) == build->isa) return *build;
    names += (names.empty() ? "" : ", ") + std::string(build->isa);
  }
  throw std::runtime_error("LIMELIGHT_ISA=" + std::string(wanted) + " cannot run here, expected one of " + names);
}

// The build beside the widest one where a vector of 512 bits runs as two of 256, or null: there the wide one gains
// little, and loses where a call leaves its wider panels empty.
const Kernels* choose_narrow() {
#ifdef LIMELIGHT_X86
  __builtin_cpu_init();
  if (!wanted_isa() && &chosen() == &avx512::kernels && __builtin_cpu_is("amdfam19h")) return &avx2::kernels;
#endif
  return nullptr;
}

// Multiply-adds of a query, those of the padding included.
double padded_work(const Problem& p, int64_t panel) {
  const auto padded = [&](int64_t size) { return static_cast<double>((size + panel - 1) / panel * panel); };
  return padded(p.j()) * static_cast<double>(p.d()) + static_cast<double>(p.j()) * padded(p.e());
}

constexpr double kWideGain = 1.05;  // of the wide build where both fill their panels (dev/LOG.md)

}  // namespace

const Kernels& chosen() {
  static const Kernels& build = choose();
  return build;
}

const Kernels& chosen_for(const Problem& p) {
  static const Kernels* narrow = choose_narrow();
  const Kernels& wide = chosen();
  if (narrow && kWideGain * padded_work(p, narrow->panel) < padded_work(p, wide.panel)) return *narrow;
  return wide;
}

}  // namespace limelight
