// Weights in MXFP4 as bfloat16. See python/weft/ops/mxfp4.py for the format.
#pragma once

#include <cstdint>

namespace weft {

struct Mxfp4Call {
  const std::uint8_t *blocks;  // [rows, groups, 16], block_row bytes between rows
  const std::uint8_t *scales;  // [rows, groups], scale_row bytes between rows
  std::uint16_t *out;          // [rows, groups, 32]
  std::int64_t rows, groups, block_row, scale_row;
};
void mxfp4_cpu(const Mxfp4Call &call);

}  // namespace weft
