#include "kernels/layer/blocks.h"

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/layer/block_codes.h"
#include "support/kernel_threads.h"

namespace weft {
namespace {

constexpr std::int64_t kCost = 2;  // of a number, in the units of for_workers

// Reads output `lane` of a half's block.
template <Format kFormat>
void read_half(const char *half, std::int64_t lane, BlockCodes &codes) {
  constexpr HalfLayout kLayout = half_layout(kFormat);
  if constexpr (kFormat == Format::kFP8) {
    auto *bytes = reinterpret_cast<char *>(codes.words);
    for (std::int64_t i = 0; i < block_of(kFormat).inputs; ++i) bytes[i] = half[i * kHalf + lane];
  } else {
    for (std::int64_t w = 0; w < code_words(kFormat); ++w)
      codes.words[w] = read_as<std::uint32_t>(half + word_at(kFormat, w, lane));
  }
  for (int plane = 0; plane < kLayout.planes; ++plane) {
    for (std::int64_t s = 0; s < block_of(kFormat).inputs / kSub; ++s) {
      codes.high[plane][s] = 0;
      for (int w = 0; w < 8; ++w) {
        const auto bits = read_as<std::uint64_t>(half + plane_at(kFormat, s, lane, plane) + 8 * w);
        codes.high[plane][s] |= static_cast<std::uint32_t>(bits >> lane % 16 * 4 & 15) << 4 * w;
      }
    }
  }
  const char *from = half + scales_at(kFormat);
  std::uint8_t *to = codes.scales;
  for (const ScaleRun &run : kLayout.runs) {
    for (int n = 0; n < run.count; ++n, to += run.size, from += run.size * kHalf)
      std::memcpy(to, from + lane * run.size, static_cast<std::size_t>(run.size));
  }
}

float half_at(const std::uint8_t *bytes) { return widen(read_as<Half>(bytes)); }

float power_of_two(std::uint8_t exponent) {  // 2^(exponent - 127)
  if (exponent == 255) return std::numeric_limits<float>::quiet_NaN();
  return bits_float(exponent ? std::uint32_t{exponent} << 23 : 0x00400000u);
}

// The numbers of E4M3, by code: a sign, 4 bits of an exponent, 3 of a fraction. It has no infinity, and one NaN of each
// sign.
std::array<float, 256> make_e4m3() {
  std::array<float, 256> numbers{};
  for (unsigned code = 0; code < numbers.size(); ++code) {
    const unsigned magnitude = code & 0x7f;  // float16 has 8 more in its exponent
    const float number = mul_rn(widen(Half{static_cast<std::uint16_t>(magnitude << 7 | (code & 0x80) << 8)}), 256);
    numbers[code] = magnitude == 0x7f ? std::numeric_limits<float>::quiet_NaN() : number;
  }
  return numbers;
}

const std::array<float, 256> kE4M3 = make_e4m3();

// Writes the numbers of a block.
template <Format kFormat>
void widen_codes(const BlockCodes &codes, float *out) {
  constexpr std::int64_t kInputs = block_of(kFormat).inputs;
  constexpr bool kIsK = kFormat == Format::kQ4_K || kFormat == Format::kQ5_K;
  const std::uint8_t *scales = codes.scales;
  for (std::int64_t s = 0; s < kInputs / kSub; ++s, out += kSub) {
    std::uint8_t numbers[kSub];
    if constexpr (half_layout(kFormat).bits == 4) {
      for (int w = 0; w < 4; ++w) {
        const std::uint32_t word = codes.words[4 * s + w];
        write_as(numbers + 4 * w, word & 0x0f0f0f0fu), write_as(numbers + 16 + 4 * w, word >> 4 & 0x0f0f0f0fu);
      }
      for (int plane = 0; plane < half_layout(kFormat).planes; ++plane) {
        for (int w = 0; w < 8; ++w) {
          const std::uint32_t four = (codes.high[plane][s] >> 4 * w & 15) * 0x00204081u & 0x01010101u;  // a bit a byte
          write_as(numbers + 4 * w, read_as<std::uint32_t>(numbers + 4 * w) | four << (4 + plane));
        }
      }
    } else {
      std::memcpy(numbers, codes.words + 8 * s, kSub);
    }
    const auto write = [&](auto number) {
      for (int i = 0; i < kSub; ++i) out[i] = number(i, static_cast<int>(numbers[i]));
    };
    if constexpr (kFormat == Format::kMXFP4) {
      const float scale = power_of_two(scales[0]);
      write([&](int, int code) { return scale * kMXFP4Codes[code]; });
    } else if constexpr (kFormat == Format::kFP8) {
      const auto scale = read_as<float>(scales);
      write([&](int, int code) { return scale * kE4M3[static_cast<std::size_t>(code)]; });
    } else if constexpr (kFormat == Format::kIQ4_NL) {
      const float scale = half_at(scales);
      write([&](int, int code) { return scale * kIQ4Codes[code]; });
    } else if constexpr (kIsK) {
      const float scale = half_at(scales + 16) * scales[s], min = half_at(scales + 18) * scales[8 + s];
      write([&](int, int code) { return scale * static_cast<float>(code) - min; });
    } else if constexpr (kFormat == Format::kQ6_K) {
      const float d = half_at(scales + 16);
      const float both[2] = {d * static_cast<std::int8_t>(scales[2 * s]),
                             d * static_cast<std::int8_t>(scales[2 * s + 1])};
      write([&](int i, int code) { return both[i / 16] * static_cast<float>(code - 32); });
    } else if constexpr (kFormat == Format::kQ4_1 || kFormat == Format::kQ5_1) {
      const float scale = half_at(scales), min = half_at(scales + 2);
      write([&](int, int code) { return scale * static_cast<float>(code) + min; });
    } else {
      constexpr bool kHalfScale = kFormat == Format::kQ4_0 || kFormat == Format::kQ5_0 || kFormat == Format::kQ8_0;
      const float scale = kHalfScale ? half_at(scales) : read_as<float>(scales);
      int zero = kFormat == Format::kQ4_0 ? 8 : kFormat == Format::kQ5_0 ? 16 : 128;
      if constexpr (half_layout(kFormat).bits == 4 && !kHalfScale) zero = scales[4];
      write([&](int, int code) { return scale * static_cast<float>(code - zero); });
    }
  }
}

// Writes `inputs` numbers of blocks that `read(block, codes)` reads.
template <Format kFormat, class Read>
void widen_all(std::int64_t inputs, float *out, Read read) {
  constexpr std::int64_t kInputs = block_of(kFormat).inputs;
  BlockCodes codes;
  for (std::int64_t b = 0; b * kInputs < inputs; ++b, out += kInputs) {
    read(b, codes);
    if (inputs - b * kInputs >= kInputs) {
      widen_codes<kFormat>(codes, out);
    } else {
      float block[kInputs];
      widen_codes<kFormat>(codes, block);
      std::copy_n(block, inputs - b * kInputs, out);
    }
  }
}

}  // namespace

void widen_row(Format format, const void *blocks, std::int64_t inputs, float *out) {
  with_format(format, [&](auto constant) {
    constexpr Format kFormat = decltype(constant)::value;
    const auto *from = static_cast<const std::uint8_t *>(blocks);
    widen_all<kFormat>(inputs, out, [&](std::int64_t b, BlockCodes &codes) {
      read_block<kFormat>(from + b * block_of(kFormat).bytes, codes);
    });
  });
}

void widen_output(Format format, const void *panels, std::int64_t output, std::int64_t inputs, float *out) {
  with_format(format, [&](auto constant) {
    constexpr Format kFormat = decltype(constant)::value;
    const std::int64_t half_bytes = panel_bytes(kFormat, Activations::kFloat32, inputs) / 2;
    const char *half = static_cast<const char *>(panels) + output / kHalf * half_bytes;
    widen_all<kFormat>(inputs, out, [&](std::int64_t b, BlockCodes &codes) {
      read_half<kFormat>(half + b * block_of(kFormat).half_bytes, output % kHalf, codes);
    });
  });
}

void widen_blocks_cpu(const WidenCall &call) {
  const std::int64_t *sizes = call.sizes, *strides = call.strides;
  for_rows(sizes[0] * sizes[1] * sizes[2], call.threads, kCost * call.inputs,
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t r = begin; r < end; ++r) {
               const std::int64_t inner = r % sizes[2], outer = r / sizes[2];
               const char *row = static_cast<const char *>(call.blocks) + inner * strides[2] +
                                 outer % sizes[1] * strides[1] + outer / sizes[1] * strides[0];
               widen_row(call.format, row, call.inputs, call.out + r * call.inputs);
             }
           });
}

}  // namespace weft
