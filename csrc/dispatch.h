// Which build of the kernels this machine runs.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace limelight {

// The builds that this CPU can run, the best first.
std::vector<const Kernels*> runnable();

// The best build, or the one that the environment variable LIMELIGHT_ISA names. Throws
// std::runtime_error if that one was not compiled or this CPU cannot run it.
const Kernels& chosen();

// The build for one attention call: the chosen one, unless a narrower one is faster for its sizes.
const Kernels& chosen_for(const Problem& p);

}  // namespace limelight
