// The integer formats of weights, as their products with int8 rows read them: for each 32 inputs of an output, codes
// without sign, an offset, and scales. A number is scale * (code - offset), plus a min in some formats. formats.h
// describes the panels. Internal to this folder.
#pragma once

#include <cstdint>

#include "kernels/layer/formats.h"

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
  int bits = 0;      // of a stored code; 0: the format has no products in int8
  int max_code = 0;  // the largest code without sign
  int offset = 0;    // of all outputs
  Int8Scales scales = Int8Scales::kHalf;
  const std::uint8_t *book = nullptr;  // of 16 codes that 4 bits stand for
};

constexpr std::uint8_t kIQ4NLBook[16] = {1,   24,  45,  63,  79,  93,  106, 118,  // -127 .. 113, plus 128
                                         129, 141, 153, 166, 181, 197, 217, 241};
constexpr std::uint8_t kMXFP4Book[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                         12, 11, 10, 9,  8,  6,  4,  0};  // doubled, plus 12

constexpr Int8Format int8_format(Format format) {
  switch (format) {
    case Format::kQ4_0:
      return {4, 15, 8, Int8Scales::kHalf, nullptr};
    case Format::kQ4_1:
      return {4, 15, 0, Int8Scales::kHalfAndMin, nullptr};
    case Format::kQ5_0:
      return {5, 31, 16, Int8Scales::kHalf, nullptr};
    case Format::kQ5_1:
      return {5, 31, 0, Int8Scales::kHalfAndMin, nullptr};
    case Format::kQ8_0:
      return {8, 255, 128, Int8Scales::kHalf, nullptr};
    case Format::kQ4_K:
      return {4, 15, 0, Int8Scales::kSuper, nullptr};
    case Format::kQ5_K:
      return {5, 31, 0, Int8Scales::kSuper, nullptr};
    case Format::kQ6_K:
      return {6, 63, 32, Int8Scales::kSuperOf16, nullptr};
    case Format::kIQ4_NL:
      return {4, 255, 128, Int8Scales::kHalf, kIQ4NLBook};
    case Format::kMXFP4:
      return {4, 24, 12, Int8Scales::kExponent, kMXFP4Book};
    case Format::kInt4_32:
    case Format::kInt4_64:
    case Format::kInt4_128:
      return {4, 15, 0, Int8Scales::kFloatAndZero, nullptr};
    case Format::kInt8_32:
    case Format::kInt8_128:
      return {8, 255, 128, Int8Scales::kFloat, nullptr};
    default:
      return {};
  }
}

// A format's codes and scales in a block of a panel's half.
template <Format kFormat>
struct Int8Block {
  static constexpr Int8Format kInfo = int8_format(kFormat);
  static constexpr int kBytes = static_cast<int>(block_of(kFormat).half_bytes);
  static constexpr int kSubs = static_cast<int>(block_of(kFormat).inputs / 32);  // sub-blocks of 32 inputs
  static constexpr int kWords = kInfo.bits == 8 ? 8 : 4;                         // of 64 bytes, for 16 outputs
  static constexpr int kPlanes = kInfo.bits == 8 ? 0 : kInfo.bits - 4;           // of high bits, 64 bytes each
  static constexpr int kScales = kSubs * 2 * (kWords + kPlanes) * 64;            // where the scales begin
  static constexpr bool kHasMins = kInfo.scales == Int8Scales::kHalfAndMin || kInfo.scales == Int8Scales::kSuper;
  static constexpr bool kHasOffset = kInfo.offset != 0 || kInfo.scales == Int8Scales::kFloatAndZero;

  // The bytes before the codes and the high bits of 16 outputs (`g` of 2) of a sub-block.
  static constexpr int codes_at(int sub, int g) { return (sub * 2 + g) * kWords * 64; }
  static constexpr int planes_at(int sub, int g) { return (kSubs * kWords * 2 + (sub * 2 + g) * kPlanes) * 64; }
};

}  // namespace weft
