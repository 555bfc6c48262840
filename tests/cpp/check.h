// doctest, and the schedule of the CPU driver under which the tests of this program run (main.cpp).
#pragma once

#include <doctest/doctest.h>

#include "driver/cpu/state.h"

namespace weft::test {

inline cpu::Schedule &schedule() {
  static cpu::Schedule current = cpu::Schedule::kInline;
  return current;
}

}  // namespace weft::test

#define CHECK_OK(call) CHECK_EQ(call, weft::cu::CUDA_SUCCESS)
