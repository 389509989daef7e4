// The kernel table of one instruction set.
#include "entry_points.h"
#include "simd/vector.h"

namespace limelight::LIMELIGHT_ISA {

#define LIMELIGHT_STRING(x) LIMELIGHT_STRINGIFY(x)
#define LIMELIGHT_STRINGIFY(x) #x

extern const Kernels kernels;
const Kernels kernels = {
    .isa = LIMELIGHT_STRING(LIMELIGHT_ISA),
    .panel = NR,
    .forward = forward,
    .backward = backward,
    .lens_forward = lens_forward,
    .activation = activation,
    .skinny_gemm = skinny_gemm,
    .adamw = adamw,
    .sum_squares = sum_squares,
};

}  // namespace limelight::LIMELIGHT_ISA
