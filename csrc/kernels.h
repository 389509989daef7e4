// What each kernel file of an ISA build defines.
#pragma once

#include "attention.h"

namespace limelight::LIMELIGHT_ISA {

bool forward(const Forward& call);    // forward.cpp
bool decode(const Forward& call);     // decode.cpp
bool backward(const Backward& call);  // backward.cpp
bool look(const Look& call);          // forward.cpp
bool survey(const Survey& call);      // lens.cpp

}  // namespace limelight::LIMELIGHT_ISA
