// Includes doctest, and holds the CPU driver's schedule for all tests of this program (see main.cpp).
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
