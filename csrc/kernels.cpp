// The entry points of this ISA build, as one table.
#include "kernels.h"

namespace limelight::LIMELIGHT_ISA {

#define LIMELIGHT_TEXT(x) LIMELIGHT_TEXT_OF(x)
#define LIMELIGHT_TEXT_OF(x) #x

extern const Kernels kernels;
const Kernels kernels = {LIMELIGHT_TEXT(LIMELIGHT_ISA),
                         forward,
                         backward,
                         look,
                         bend,
                         few_rows,
                         adamw,
                         sum_squares,
                         multiply_add,
                         read_memory};

}  // namespace limelight::LIMELIGHT_ISA
