// Input rows rounded to int8, for products with quantised weights. Internal to this folder.
//
// For each 32 inputs of a row there are a scale max|x| / 127 and codes x * (127 / max|x|), rounded to the nearest
// integer, ties to even. So codes are -127 to 127. Numbers below 2^-119 count as 0 where all 32 are. The scale is NaN
// if one of the 32 is infinite or NaN.
#pragma once

#include <cstdint>

#include "kernels/layer/panels.h"

namespace weft {

constexpr std::int64_t kInt8Inputs = 32, kInt8Group = 16;
constexpr float kInt8SmallestMax = 0x1p-119f;
constexpr std::int64_t kInt8RowBytes = kInt8Inputs + 3 * 4;  // of 32 inputs of one row

// For 32 inputs, a group of rows has a block: [group][32] codes, [group] scales, [group] scales times sums of codes,
// and [group] pairs of negated sums, of the first and the last 16 codes, 16 bits each. The blocks lie side by side.
// These functions return the bytes before the numbers of a row.
constexpr std::int64_t int8_codes_at(std::int64_t row) { return row * kInt8Inputs; }
constexpr std::int64_t int8_scale_at(std::int64_t group, std::int64_t row) { return group * kInt8Inputs + 4 * row; }
constexpr std::int64_t int8_scaled_sum_at(std::int64_t group, std::int64_t row) {
  return int8_scale_at(group, group + row);
}
constexpr std::int64_t int8_minus_sums_at(std::int64_t group, std::int64_t row) {
  return int8_scale_at(group, 2 * group + row);
}

// Returns the blocks of 32 inputs of a row.
inline std::int64_t int8_blocks(std::int64_t inputs) { return ceil_div(inputs, kInt8Inputs); }

inline std::int64_t int8_bytes(std::int64_t group, std::int64_t inputs) {
  return ceil_div(int8_blocks(inputs) * group * kInt8RowBytes, kLineBytes) * kLineBytes;
}

}  // namespace weft
