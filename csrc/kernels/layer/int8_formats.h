// The integer formats of weights, as their products with int8 rows read them: for each 32 inputs of an output, codes
// without sign, an offset, and scales. A number is scale * (code - offset), plus a min in some formats. formats.h
// describes the panels. Internal to this folder.
#pragma once

#include <cstdint>

#include "kernels/layer/block_codes.h"

namespace weft {

// How the scales of a block are stored.
enum class Int8Scales {
  kHalf,          // float16 d
  kHalfAndMin,    // float16 d, float16 m: numbers are d * code + m
  kSuper,         // uint8 scales and mins of 32 inputs, float16 d and dmin: d * scale * code - dmin * min
  kSuperOf16,     // int8 scales of 16 inputs, float16 d
  kExponent,      // uint8 e: the scale is 2^(e - 128), for codes of doubled numbers; 255 is NaN
  kFloat,         // float32
  kFloatAndZero,  // float32, uint8 offset of its output
};

struct Int8Format {
  int max_code = 0;  // the largest code without sign; 0: the format has no products in int8
  int offset = 0;    // of all outputs
  Int8Scales scales = Int8Scales::kHalf;
  const std::uint8_t *book = nullptr;  // of the 16 codes that 4 bits stand for
};

constexpr std::uint8_t kIQ4Book[16] = {1,   24,  45,  63,  79,  93,  106, 118,  // the numbers plus 128
                                       129, 141, 153, 166, 181, 197, 217, 241};
constexpr std::uint8_t kMXFP4Book[16] = {12, 13, 14, 15, 16, 18, 20, 24,  // the numbers doubled, plus 12
                                         12, 11, 10, 9,  8,  6,  4,  0};

constexpr Int8Format int8_format(Format format) {
  switch (format) {
    case Format::kQ4_0:
      return {15, 8, Int8Scales::kHalf, nullptr};
    case Format::kQ4_1:
      return {15, 0, Int8Scales::kHalfAndMin, nullptr};
    case Format::kQ5_0:
      return {31, 16, Int8Scales::kHalf, nullptr};
    case Format::kQ5_1:
      return {31, 0, Int8Scales::kHalfAndMin, nullptr};
    case Format::kQ8_0:
      return {255, 128, Int8Scales::kHalf, nullptr};
    case Format::kQ4_K:
      return {15, 0, Int8Scales::kSuper, nullptr};
    case Format::kQ5_K:
      return {31, 0, Int8Scales::kSuper, nullptr};
    case Format::kQ6_K:
      return {63, 32, Int8Scales::kSuperOf16, nullptr};
    case Format::kIQ4_NL:
      return {255, 128, Int8Scales::kHalf, kIQ4Book};
    case Format::kMXFP4:
      return {24, 12, Int8Scales::kExponent, kMXFP4Book};
    case Format::kInt4_32:
    case Format::kInt4_64:
    case Format::kInt4_128:
      return {15, 0, Int8Scales::kFloatAndZero, nullptr};
    case Format::kInt8_32:
    case Format::kInt8_128:
      return {255, 128, Int8Scales::kFloat, nullptr};
    default:
      return {};
  }
}

constexpr int kOffsetOf16 = int8_format(Format::kQ6_K).offset;

constexpr bool has_mins(Format format) {
  const Int8Scales scales = int8_format(format).scales;
  return scales == Int8Scales::kHalfAndMin || scales == Int8Scales::kSuper;
}

// The weights of half of a panel for 32 inputs, in an order that all formats share: what kernels for several rows read.
struct alignas(64) Int8Unpacked {
  std::uint8_t codes[2][8][64];  // words of 4 inputs, of 16 outputs each
  float scales[32], mins[32];
  std::int32_t pairs[2][32];  // [0]: offsets, twice in 16 bits each; or Q6_K's scales of 16 inputs
};

constexpr std::int64_t kUnpackedSubs = 8;  // sub-blocks that are unpacked at once, and stay in the cache

}  // namespace weft
