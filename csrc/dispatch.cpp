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

const Kernels& choose() {
  const std::vector<const Kernels*> builds = runnable();
  const char* wanted = std::getenv("LIMELIGHT_ISA");
  if (!wanted || !*wanted) return *builds.front();
  std::string names;
  for (const Kernels* build : builds) {
    if (std::string(wanted) == build->isa) return *build;
    names += (names.empty() ? "" : ", ") + std::string(build->isa);
  }
  throw std::runtime_error("LIMELIGHT_ISA=" + std::string(wanted) + " cannot run here, expected one of " + names);
}

}  // namespace

const Kernels& chosen() {
  static const Kernels& build = choose();
  return build;
}

}  // namespace limelight
