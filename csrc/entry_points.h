// What the kernel files of one instruction set define.
#pragma once

#include "kernels.h"

namespace limelight::LIMELIGHT_ISA {

bool forward(const Forward& call);           // attention/forward.cpp
bool lens_forward(const LensForward& call);  // attention/forward.cpp
bool decode(const Forward& call);            // attention/decode.cpp
bool prefers_decode(const Problem& p);       // attention/decode.cpp: whether decode is faster than forward
bool backward(const Backward& call);         // attention/backward.cpp
bool activation(const Activation& call);     // linear/activations.cpp
bool skinny_gemm(const SkinnyGemm& call);    // linear/skinny_gemm.cpp
bool adamw(const AdamWStep& call);           // linear/adamw.cpp
bool sum_squares(const Parameter* parameters, int64_t count, double& total);  // linear/adamw.cpp

}  // namespace limelight::LIMELIGHT_ISA
