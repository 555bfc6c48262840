// float32 arithmetic with the same bits on every device and instruction set. It has operations that are never fused,
// exact widening of 16-bit floats, narrowing to nearest (ties to even), and the order of floats as integers. Host code
// that needs the same bits must be compiled with -ffp-contract=off.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define WEFT_HD __host__ __device__ __forceinline__
#else
#define WEFT_HD [[gnu::always_inline]] inline
#endif

namespace weft {

struct Half {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

WEFT_HD float add_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

WEFT_HD float mul_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

WEFT_HD float div_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

WEFT_HD std::uint32_t float_bits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}

WEFT_HD float bits_float(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

constexpr float kInfinity = __builtin_huge_valf();

// ---- the order of floats as integers ---------------------------------------------------------------------------

// Maps floats to integers in the same order; -0 counts as 0. Not for NaN.
WEFT_HD std::uint32_t ordered(float x) {
  const std::uint32_t bits = float_bits(add_rn(x, 0.0f));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

WEFT_HD float unordered(std::uint32_t key) { return bits_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// ---- element types of logits -----------------------------------------------------------------------------------

// The largest finite number of each type.
WEFT_HD constexpr float largest(float) { return 0x1.fffffep127f; }
WEFT_HD constexpr float largest(BFloat16) { return 0x1.fep127f; }
WEFT_HD constexpr float largest(Half) { return 65504.0f; }

WEFT_HD bool is_finite(float x) { return (x < kInfinity) & (x > -kInfinity); }

WEFT_HD float clamped(float x, float limit) { return x < limit ? x > -limit ? x : -limit : limit; }

WEFT_HD float widen(float x) { return x; }

WEFT_HD float widen(BFloat16 x) { return bits_float(std::uint32_t{x.bits} << 16); }

WEFT_HD float widen(Half x) {
  const std::uint32_t shifted = static_cast<std::uint32_t>(x.bits & 0x7fffu) << 13;
  const std::uint32_t scaled = float_bits(mul_rn(bits_float(shifted), 0x1p112f));
  const std::uint32_t special = (x.bits & 0x7c00u) == 0x7c00u ? shifted | 0x7f800000u : scaled;
  return bits_float(special | static_cast<std::uint32_t>(x.bits & 0x8000u) << 16);
}

WEFT_HD void narrow(float x, float &out) { out = x; }

WEFT_HD void narrow(float x, BFloat16 &out) {
  const std::uint32_t bits = float_bits(x), magnitude = bits & 0x7fffffffu;
  const std::uint32_t nearest = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  out.bits = static_cast<std::uint16_t>(magnitude > 0x7f800000u ? bits >> 16 | 0x40u : nearest);
}

WEFT_HD void narrow(float x, Half &out) {
  const std::uint32_t bits = float_bits(x), magnitude = bits & 0x7fffffffu;
  // One unit in the last place of 0.5 in float32 is the smallest float16. So adding 0.5 rounds a number below 2^-14 to
  // a multiple of the smallest float16.
  const std::uint32_t subnormal = float_bits(add_rn(bits_float(magnitude), 0.5f)) - 0x3f000000u;
  const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  const std::uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const std::uint32_t infinite = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const std::uint32_t unsigned_bits = magnitude < 0x47800000u ? finite : infinite;
  out.bits = static_cast<std::uint16_t>(unsigned_bits | (bits >> 16 & 0x8000u));
}

}  // namespace weft
