// Which build of the kernels this machine runs.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace limelight {

// The builds that this CPU can run, fastest first.
std::vector<const Kernels*> runnable_builds();

// The fastest build, or the one that the environment variable LIMELIGHT_ISA names. Throws std::runtime_error if
// that build was not compiled or this CPU cannot run it.
const Kernels& chosen_build();

// The build for one attention call: the chosen one, unless narrower vectors are faster for its sizes.
const Kernels& build_for(const Problem& p);

}  // namespace limelight
