// What each kernel file of an ISA build defines.
#pragma once

#include "attention.h"

namespace limelight::LIMELIGHT_ISA {

bool forward(const Forward& call);                                   // forward.cpp
bool decode(const Forward& call);                                    // decode.cpp
bool decode_suits(const Problem& p);                                 // decode.cpp: whether it is the faster way
bool backward(const Backward& call);                                 // backward.cpp
bool look(const Look& call);                                         // forward.cpp
bool bend(const Bend& call);                                         // pointwise.cpp
bool few_rows(const FewRows& call);                                  // few_rows.cpp
bool adamw(const Adamw& call);                                       // adamw.cpp
bool sum_squares(const Learned* all, int64_t count, double& total);  // adamw.cpp

bool multiply_add(int threads, double& operations);                // measure.cpp
bool read_memory(int threads, const float* from, int64_t floats);  // measure.cpp

}  // namespace limelight::LIMELIGHT_ISA
