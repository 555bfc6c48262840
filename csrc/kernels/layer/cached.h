// The numbers of cached keys and values. Each type but int8 is a float, to which a number is rounded (nearest, ties to
// even). Widening to float32 is exact.
//
// Keys and values in int8 have one scale for each head's key and each value: number = code * scale. A scale is a
// bfloat16, so that the product of a code and a scale is exact in float32. It is at least the largest magnitude / 127.
#pragma once

#include <cstdint>

#include "kernels/floats.h"

namespace weft {

// The codes of CACHED in python/weft/ops/cached.py.
enum class CachedType { kFloat32, kFloat16, kBFloat16, kFloat8, kInt8 };

// A float8 E4M3 without infinity: 1 sign, 4 bits of exponent, 3 of mantissa. 0x7f is NaN.
struct Float8 {
  std::uint8_t bits;
};
struct Int8 {
  std::int8_t code;
};

// Numbers beyond the largest, 448, become that.
WEFT_HD void narrow(float x, Float8 &out) {
  const std::uint32_t bits = float_bits(x), magnitude = bits & 0x7fffffffu;
  // One unit in the last place of 2^14 in float32 is the smallest float8. So adding 2^14 rounds a number below 2^-6 to
  // a multiple of the smallest float8.
  const std::uint32_t subnormal = float_bits(add_rn(bits_float(magnitude), 0x1p14f)) - 0x46800000u;
  const std::uint32_t normal = (magnitude - 0x3c000000u + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20;
  const std::uint32_t finite = magnitude < 0x3c800000u ? subnormal : normal;
  const std::uint32_t largest = magnitude > 0x7f800000u ? 0x7fu : 0x7eu;
  const std::uint32_t unsigned_bits = magnitude < 0x43e00000u ? finite : largest;
  out.bits = static_cast<std::uint8_t>(unsigned_bits | (bits >> 24 & 0x80u));
}

}  // namespace weft
