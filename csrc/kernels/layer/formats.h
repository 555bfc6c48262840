// How the numbers of a weight matrix are stored, in files and in the panels of the CPU's kernels. The same formats and
// numbers are in python/weft/ops/formats.py.
//
// A quantised format has blocks: some inputs of one output, with a scale. A row of blocks is one output. The blocks of
// Q4_0 to MXFP4 are those of GGUF files; a super-block of the K formats has 256 inputs in sub-blocks of 32 or 16. weft
// makes the others from safetensors:
//
//   INT4_G  float32 scale, uint8 zero, 3 bytes 0, G / 2 bytes: number = scale * (code - zero)
//   INT8_G  float32 scale, G int8:                              number = scale * code
//   FP8     float32 scale, 128 codes in E4M3:                   number = scale * code
//
// In 4 bits, byte j of 32 inputs has input j in its low half and input j + 16 in its high half.
//
// A panel has kPanel outputs in two halves. A half has 32 outputs, and blocks in the order of inputs; outputs after the
// last have any numbers. A half's block has these parts, each a multiple of 64 bytes.
//
// First its codes: for each 32 inputs, for each 16 outputs, words of 4 bytes of these outputs side by side, [4 or 8
// words][16 outputs][4 bytes]. The 8 words of 8 bits have inputs 0..31. The 4 words of 4 bits have inputs 0..15 in the
// low halves of their bytes and 16..31 in the high halves. INT8 and Q8_0 are stored with their sign bit flipped.
//
// Then the high bits of Q5 and Q6: for each 32 inputs, for each 16 outputs, planes of 64 bytes: bit 4 of the codes,
// then bit 5. A plane has 8 bytes for each 4 inputs, whose bit 4 o + i is that of output o and input i.
//
// Last the scales, each for 32 outputs. Q4_0, Q5_0, Q8_0, IQ4_NL: float16 d. Q4_1, Q5_1: float16 d, float16 m. Q4_K,
// Q5_K: [8] uint8 scales, [8] uint8 mins, float16 d, float16 dmin. Q6_K: [16] int8 scales, float16 d. MXFP4: uint8
// exponents, 32 bytes 0. INT4_G: float32 scale, uint8 zero, 32 bytes 0. INT8_G: float32 scale.
//
// FP8 has its codes as [128 inputs][32 outputs], then 32 float32 scales.
#pragma once

#include <cstdint>

#include "kernels/logits.h"

namespace weft {

constexpr std::int64_t kPanel = 64;  // outputs of a panel

enum class Format : int {
  kFloat32 = 0,
  kFloat16 = 1,
  kBFloat16 = 2,
  kQ4_0 = 3,
  kQ4_1 = 4,
  kQ5_0 = 5,
  kQ5_1 = 6,
  kQ8_0 = 7,
  kQ4_K = 8,
  kQ5_K = 9,
  kQ6_K = 10,
  kIQ4_NL = 11,
  kMXFP4 = 12,
  kInt4_32 = 13,
  kInt4_64 = 14,
  kInt4_128 = 15,
  kInt8_32 = 16,
  kInt8_128 = 17,
  kFP8 = 18,
};
constexpr int kNumFormats = 19;

// A block: its inputs, its bytes in a row of blocks, and its bytes in a panel's half, for 32 outputs. A dense format
// has blocks of one number.
struct Block {
  std::int64_t inputs, bytes, half_bytes;
};

constexpr Block kBlocks[kNumFormats] = {
    {1, 4, 128},      {1, 2, 64},       {1, 2, 64},                                          // dense
    {32, 18, 576},    {32, 20, 640},    {32, 22, 704},    {32, 24, 768},  {32, 34, 1088},    // Q4_0 .. Q8_0
    {256, 144, 4736}, {256, 176, 5760}, {256, 210, 6720},                                    // Q4_K .. Q6_K
    {32, 18, 576},    {32, 17, 576},                                                         // IQ4_NL, MXFP4
    {32, 24, 704},    {64, 40, 1216},   {128, 72, 2240},  {32, 36, 1152}, {128, 132, 4224},  // INT4, INT8
    {128, 132, 4224},                                                                        // FP8
};

constexpr const Block &block_of(Format format) { return kBlocks[static_cast<int>(format)]; }
constexpr bool is_quantized(Format format) { return static_cast<int>(format) > static_cast<int>(Format::kBFloat16); }
constexpr Format format_of(DType dtype) { return static_cast<Format>(dtype); }

// How a product rounds its input rows before it multiplies: not at all; to two bfloat16 parts, 17 bits in all; to
// bfloat16; or to int8 with a scale for each 32 inputs.
enum class Activations : int { kFloat32 = 0, kTwoBFloat16 = 1, kBFloat16 = 2, kInt8 = 3 };

// Whether weights are stored in tiles of pairs of inputs (linear.h). Only bfloat16 can be.
constexpr bool is_tiled(Format format, Activations activations) {
  return format == Format::kBFloat16 && activations != Activations::kFloat32;
}

// The bytes of one panel of weights.
constexpr std::int64_t panel_bytes(Format format, Activations activations, std::int64_t inputs) {
  const Block &block = block_of(format);
  const std::int64_t unit = is_tiled(format, activations) ? 32 : block.inputs;  // a tile has 32 inputs
  const std::int64_t blocks = (inputs + unit - 1) / unit;
  return 2 * blocks * (unit / block.inputs) * block.half_bytes;
}

}  // namespace weft
