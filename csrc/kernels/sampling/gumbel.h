// The Gumbel noise of coupled sampling, with the same bits on every device.
//
// Philox4x32-10 (Salmon et al., SC 2011) gives four words. Its key is the request's seed, and its counter is (position
// low, position high, token / 4, purpose). Word token % 4 is the token's. The noise is the Gumbel variate
// -log(-log(u)), u = (word + 0.5) / 2^32. It is computed by single-precision additions and multiplications in a fixed
// order, none of them fused, so that compilers, instruction sets and devices agree. It is between -3.14 and 22.9, never
// inf or NaN. Host code that uses it must be compiled with -ffp-contract=off.
#pragma once

#include <cstdint>

#include "kernels/floats.h"

namespace weft {

constexpr std::uint32_t kPurposeSample = 0x77656674u;  // other uses of a seed have other numbers

// A temperature below this counts as 0: greedy, without noise.
constexpr float kLowestTemperature = 1e-5f;

struct PhiloxWords {
  std::uint32_t word[4];
};

WEFT_HD PhiloxWords philox4x32_10(std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3,
                                  std::uint32_t k0, std::uint32_t k1) {
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0;
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// log(2^exponent * (1 + f)) for f between sqrt(1/2) - 1 and sqrt(2) - 1, to 1.5 units in the last place or so.
WEFT_HD float log_reduced(float f, float exponent) {
  float p = -0x1.38b576p-4f;  // (log(1 + f) - f + f^2 / 2) / f^3, a minimax fit
  p = add_rn(mul_rn(p, f), 0x1.055b68p-3f);
  p = add_rn(mul_rn(p, f), -0x1.0d8542p-3f);
  p = add_rn(mul_rn(p, f), 0x1.22da1ep-3f);
  p = add_rn(mul_rn(p, f), -0x1.547244p-3f);
  p = add_rn(mul_rn(p, f), 0x1.99a008p-3f);
  p = add_rn(mul_rn(p, f), -0x1.000226p-2f);
  p = add_rn(mul_rn(p, f), 0x1.555554p-2f);
  const float square = mul_rn(f, f);
  const float tail = add_rn(mul_rn(mul_rn(p, f), square), mul_rn(-0.5f, square));
  return add_rn(mul_rn(exponent, 0x1.62e430p-1f), add_rn(tail, f));
}

// log(x) of a positive normal x.
WEFT_HD float log_normal(float x) {
  const std::uint32_t bits = float_bits(x);
  const auto exponent = static_cast<std::int32_t>(bits - 0x3f3504f3u) >> 23;  // of x / sqrt(1/2)
  const float mantissa = bits_float(bits - (static_cast<std::uint32_t>(exponent) << 23));
  return log_reduced(add_rn(mantissa, -1.0f), static_cast<float>(exponent));
}

WEFT_HD float gumbel(std::uint32_t word) {
  // For u above 1/2, `near` is 1 - u: the largest noise is there, and floats near 1 are too coarse for it.
  const bool upper = word >= 0x80000000u;
  const float near = mul_rn(add_rn(static_cast<float>(upper ? ~word : word), 0.5f), 0x1p-32f);
  float log_u;
  if (upper && near < 0.29f) {
    log_u = log_reduced(-near, 0.0f);
  } else {
    log_u = log_normal(upper ? add_rn(1.0f, -near) : near);
  }
  return -log_normal(-log_u);
}

// Returns an upper bound of gumbel(word), for each of the 2^32 words. It is less than 0.25 above a noise over 1, and a
// smaller noise seldom wins. It is cheap, and few tokens need the exact noise. -log(1 - u) bounds the variate, and a
// float's bits are a piecewise linear logarithm.
WEFT_HD float gumbel_bound(std::uint32_t word) {
  const float half = add_rn(static_cast<float>(static_cast<std::int32_t>(~word >> 1)), 0.25f);  // (1 - u) * 2^31
  const auto bits = static_cast<float>(static_cast<std::int32_t>(float_bits(half)));
  // (127 + 31 - bits / 2^23) * log 2, and 0.001 for every rounding on the way.
  return add_rn(109.5193f, mul_rn(bits, -0x1.62e430p-24f));
}

constexpr float kLargestNoise = 22.9f;

}  // namespace weft
