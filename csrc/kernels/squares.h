// Sums of squares in an order that does not depend on the instruction set.
#pragma once

#include <cstdint>

namespace weft {

// The sum of x[i]^2 over `size` floats: 16 sums of every 16th, then their sum.
[[gnu::always_inline]] inline float sum_of_squares(const float *x, std::int64_t size) {
  constexpr std::int64_t kParts = 16;
  float sums[kParts] = {}, sum = 0;
  std::int64_t i = 0;
  for (; i + kParts <= size; i += kParts)
    for (std::int64_t n = 0; n < kParts; ++n) sums[n] += x[i + n] * x[i + n];
  for (std::int64_t n = 0; i + n < size; ++n) sums[n] += x[i + n] * x[i + n];
  for (const float part : sums) sum += part;
  return sum;
}

}  // namespace weft
