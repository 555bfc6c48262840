// One output's block of a quantised format (formats.h), in an order that all formats share: what blocks.cpp and
// pack_blocks.cpp have in common. Internal to this folder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "kernels/floats.h"
#include "kernels/layer/formats.h"

namespace weft {

constexpr std::int64_t kSub = 32;   // inputs of a sub-block
constexpr std::int64_t kHalf = 32;  // outputs of a panel's half
constexpr int kMaxCodeWords = 32, kMaxPlanes = 2, kMaxSubs = 8, kMaxScaleBytes = 20;

// Numbers of a block beside its codes: `count` numbers of `size` bytes.
struct ScaleRun {
  int count, size;
};

// How a format stores blocks in a panel's half. FP8 has no planes and 8 bits, but its codes lie by inputs.
struct HalfLayout {
  int bits;          // of the codes without the high bits: 4 or 8
  int planes;        // of high bits
  ScaleRun runs[2];  // in their order
};

constexpr HalfLayout half_layout(Format format) {
  switch (format) {
    case Format::kQ4_0:
    case Format::kIQ4_NL:
      return {4, 0, {{1, 2}, {0, 0}}};
    case Format::kQ4_1:
      return {4, 0, {{2, 2}, {0, 0}}};
    case Format::kQ5_0:
      return {4, 1, {{1, 2}, {0, 0}}};
    case Format::kQ5_1:
      return {4, 1, {{2, 2}, {0, 0}}};
    case Format::kQ4_K:
      return {4, 0, {{16, 1}, {2, 2}}};
    case Format::kQ5_K:
      return {4, 1, {{16, 1}, {2, 2}}};
    case Format::kQ6_K:
      return {4, 2, {{16, 1}, {1, 2}}};
    case Format::kMXFP4:
      return {4, 0, {{1, 1}, {0, 0}}};
    case Format::kInt4_32:
    case Format::kInt4_64:
    case Format::kInt4_128:
      return {4, 0, {{1, 4}, {1, 1}}};
    case Format::kQ8_0:
      return {8, 0, {{1, 2}, {0, 0}}};
    default:  // INT8, FP8
      return {8, 0, {{1, 4}, {0, 0}}};
  }
}

constexpr std::int64_t code_words(Format format) { return block_of(format).inputs * half_layout(format).bits / 32; }

// Returns the bytes of a half's block before its high bits, and before its scales.
constexpr std::int64_t planes_at(Format format) { return code_words(format) * 4 * kHalf; }
constexpr std::int64_t scales_at(Format format) {
  return planes_at(format) + half_layout(format).planes * block_of(format).inputs * kHalf / 8;
}

// Returns the bytes of a half's block before word `word` of the codes of output `lane`. Not for FP8.
constexpr std::int64_t word_at(Format format, std::int64_t word, std::int64_t lane) {
  const std::int64_t words = kSub * half_layout(format).bits / 32;  // of a sub-block
  return ((word / words * 2 + lane / 16) * words + word % words) * 64 + lane % 16 * 4;
}

// Returns the bytes of a half's block before a plane of high bits of a sub-block, for the 16 outputs of `lane`.
constexpr std::int64_t plane_at(Format format, std::int64_t sub, std::int64_t lane, int plane) {
  return planes_at(format) + ((sub * 2 + lane / 16) * half_layout(format).planes + plane) * 64;
}

// The codes of one output's block. Words of codes and scales are in the order of a panel; bit i of high[p][s] is bit
// 4 + p of the code of input 32 s + i.
struct BlockCodes {
  std::uint32_t words[kMaxCodeWords];
  std::uint32_t high[kMaxPlanes][kMaxSubs];
  std::uint8_t scales[kMaxScaleBytes];
};

// Loads and stores of any alignment, little endian.
template <class T>
WEFT_HD T read_as(const void *from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
WEFT_HD void write_as(void *to, T value) {
  std::memcpy(to, &value, sizeof value);
}

constexpr std::uint64_t kLowHalves = 0x0f0f0f0f0f0f0f0fu;

// Returns bit `bit` of 32 bytes, the first byte's as the lowest.
WEFT_HD std::uint32_t bits_of_32(const std::uint8_t *bytes, int bit) {
#if defined(__SSE2__)
  const auto sixteen = [&](int first) {  // a shift moves bits of the byte below, but not to the highest bit
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i *>(bytes + first));
    return static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_sll_epi16(all, _mm_cvtsi32_si128(7 - bit))));
  };
  return sixteen(0) | sixteen(16) << 16;
#else
  std::uint32_t bits = 0;
  for (int i = 0; i < 4; ++i) {
    const auto lowest = read_as<std::uint64_t>(bytes + 8 * i) >> bit & 0x0101010101010101u;
    bits |= static_cast<std::uint32_t>(lowest * 0x0102040810204080u >> 56) << 8 * i;
  }
  return bits;
#endif
}

// Reads the codes of 4 bits of 32 inputs, each in the half of its byte that begins at bit `shift`, into four words.
WEFT_HD void read_halves(const std::uint8_t *bytes, int shift, std::uint32_t *words) {
  for (int i = 0; i < 2; ++i) {
    const std::uint64_t low = read_as<std::uint64_t>(bytes + 8 * i) >> shift & kLowHalves,
                        high = read_as<std::uint64_t>(bytes + 16 + 8 * i) >> shift & kLowHalves;
    write_as(words + 2 * i, low | high << 4);
  }
}

// Unpacks the 6 bits of the scales and mins of a K format, 8 each.
WEFT_HD void read_k_scales(const std::uint8_t *bytes, std::uint8_t *scales) {
  const auto first = read_as<std::uint32_t>(bytes), second = read_as<std::uint32_t>(bytes + 4),
             third = read_as<std::uint32_t>(bytes + 8);
  write_as(scales, first & 0x3f3f3f3fu);
  write_as(scales + 4, (third & 0x0f0f0f0fu) | (first >> 2 & 0x30303030u));
  write_as(scales + 8, second & 0x3f3f3f3fu);
  write_as(scales + 12, (third >> 4 & 0x0f0f0f0fu) | (second >> 2 & 0x30303030u));
}

// Reads a block of a row.
template <Format kFormat>
WEFT_HD void read_block(const std::uint8_t *block, BlockCodes &codes) {
  constexpr int kWords = code_words(kFormat), kInputs = block_of(kFormat).inputs;
  constexpr bool kHasMin = kFormat == Format::kQ4_1 || kFormat == Format::kQ5_1;
  if constexpr (kFormat == Format::kQ4_0 || kFormat == Format::kIQ4_NL || kFormat == Format::kQ5_0 || kHasMin) {
    constexpr int kScales = kHasMin ? 4 : 2, kHigh = half_layout(kFormat).planes * 4;
    std::memcpy(codes.scales, block, kScales);
    if constexpr (kHigh) codes.high[0][0] = read_as<std::uint32_t>(block + kScales);
    std::memcpy(codes.words, block + kScales + kHigh, 16);
  } else if constexpr (kFormat == Format::kMXFP4) {
    codes.scales[0] = block[0];
    std::memcpy(codes.words, block + 1, 16);
  } else if constexpr (kFormat == Format::kQ4_K || kFormat == Format::kQ5_K) {
    constexpr bool kHigh = kFormat == Format::kQ5_K;
    std::memcpy(codes.scales + 16, block, 4);
    read_k_scales(block + 4, codes.scales);
    const std::uint8_t *low = block + (kHigh ? 48 : 16);
    for (int s = 0; s < 8; ++s) {
      read_halves(low + s / 2 * 32, s % 2 * 4, codes.words + 4 * s);
      if constexpr (kHigh) codes.high[0][s] = bits_of_32(block + 16, s);
    }
  } else if constexpr (kFormat == Format::kQ6_K) {
    for (int s = 0; s < 8; ++s) {  // four sub-blocks share the bytes of each half of the inputs
      read_halves(block + s / 4 * 64 + s % 2 * 32, s % 4 / 2 * 4, codes.words + 4 * s);
      for (int plane = 0; plane < 2; ++plane)
        codes.high[plane][s] = bits_of_32(block + 128 + s / 4 * 32, s % 4 * 2 + plane);
    }
    std::memcpy(codes.scales, block + 192, 18);
  } else if constexpr (half_layout(kFormat).bits == 4) {  // INT4
    std::memcpy(codes.scales, block, 5);
    std::memcpy(codes.words, block + 8, kInputs / 2);
  } else {
    constexpr int kScale = kFormat == Format::kQ8_0 ? 2 : 4;
    std::memcpy(codes.scales, block, kScale);
    std::memcpy(codes.words, block + kScale, kInputs);
    if constexpr (kFormat != Format::kFP8) {
      for (int w = 0; w < kWords; ++w) codes.words[w] ^= 0x80808080u;
    }
  }
}

// Calls fn with a quantised format as a std::integral_constant.
template <class F>
void with_format(Format format, F &&fn) {
  switch (format) {
#define WEFT_FORMAT(name) \
  case Format::name:      \
    return fn(std::integral_constant<Format, Format::name>());
    WEFT_FORMAT(kQ4_0)
    WEFT_FORMAT(kQ4_1)
    WEFT_FORMAT(kQ5_0)
    WEFT_FORMAT(kQ5_1)
    WEFT_FORMAT(kQ8_0)
    WEFT_FORMAT(kQ4_K)
    WEFT_FORMAT(kQ5_K)
    WEFT_FORMAT(kQ6_K)
    WEFT_FORMAT(kIQ4_NL)
    WEFT_FORMAT(kMXFP4)
    WEFT_FORMAT(kInt4_32)
    WEFT_FORMAT(kInt4_64)
    WEFT_FORMAT(kInt4_128)
    WEFT_FORMAT(kInt8_32)
    WEFT_FORMAT(kInt8_128)
    WEFT_FORMAT(kFP8)
#undef WEFT_FORMAT
    default:
      break;
  }
}

}  // namespace weft
