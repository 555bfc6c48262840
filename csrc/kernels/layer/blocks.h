// Quantised matrices (formats.h) as float32, in plain code: the reference for the kernels, and what embeddings read.
#pragma once

#include <cstdint>

#include "kernels/layer/formats.h"

namespace weft {

// The code books of IQ4_NL and MXFP4, by code.
constexpr float kIQ4Codes[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr float kMXFP4Codes[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6};

// The bytes of an output's row of blocks.
constexpr std::int64_t row_bytes(Format format, std::int64_t inputs) {
  const Block &block = block_of(format);
  return (inputs + block.inputs - 1) / block.inputs * block.bytes;
}

// Writes the numbers of a row of blocks, or of output `output` of panels of a matrix.
void widen_row(Format format, const void *blocks, std::int64_t inputs, float *out);
void widen_output(Format format, const void *panels, std::int64_t output, std::int64_t inputs, float *out);

// out = the numbers of `blocks`, whose rows are those of a tensor of three dimensions, numbered in order.
struct WidenCall {
  Format format;
  const void *blocks;
  std::int64_t sizes[3], strides[3];  // of the rows; strides in bytes
  std::int64_t inputs;
  float *out;  // [rows, inputs]
  int threads;
};
void widen_blocks_cpu(const WidenCall &call);

}  // namespace weft
