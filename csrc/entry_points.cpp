// The table of this instruction set.
#include "entry_points.h"
#include "simd/vector.h"

namespace limelight::LIMELIGHT_ISA {

#define LIMELIGHT_TEXT(x) LIMELIGHT_TEXT_OF(x)
#define LIMELIGHT_TEXT_OF(x) #x

extern const Kernels kernels;
const Kernels kernels = {
    .isa = LIMELIGHT_TEXT(LIMELIGHT_ISA),
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
