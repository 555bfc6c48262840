// Products of rows with panels of weights on one thread: what linear.cpp and experts.cpp share. Internal to this
// folder.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/layer/linear.h"

namespace weft {

// The input rows of a product. For AMX they are in groups of `group` rows, with each float split into bfloat16 parts
// (`split`).
struct Rows {
  const float *x;
  std::int64_t count, width, stride;
  const std::uint16_t *split;
  std::int64_t group;
};

constexpr std::int64_t kTileRows = 6, kAmxRowBlock = 48;  // rows of a block are a multiple, so that all tiles are full
constexpr std::int64_t kMaxRowBlock = 96;  // a block's inputs stay in the cache while its panels are read
constexpr std::int64_t kGroup = 8, kParts = 2, kGroupSums = kGroup * kParts * kPanel;
constexpr std::int64_t kBlock = 32, kTile = 512;             // inputs of an AMX tile; its 16-bit elements
constexpr std::int64_t kTilesOfBlock = kPanel / 16 * kTile;  // 16-bit elements of a panel for one block of inputs

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
inline std::int64_t group_of(std::int64_t rows) { return std::min(rows, kGroup); }
inline std::int64_t groups_of(const Rows &rows) { return ceil_div(rows.count, rows.group); }
inline std::int64_t blocks_of(std::int64_t inputs) { return ceil_div(inputs, kBlock); }

// The size of a split group in 16-bit elements; its layout is [blocks, kParts, group, kBlock].
inline std::int64_t split_size(std::int64_t group, std::int64_t inputs) {
  return blocks_of(inputs) * kParts * group * kBlock;
}

// The size of one panel of weights in elements.
inline std::int64_t panel_size(std::int64_t inputs, bool tiled) {
  return tiled ? blocks_of(inputs) * kTilesOfBlock : inputs * kPanel;
}

// Returns rows first .. first + count - 1. `first` is a multiple of the group's size.
inline LinearCall rows_of(const LinearCall &call, std::int64_t first, std::int64_t count) {
  LinearCall block = call;
  block.rows = count;
  block.x += first * call.x_row, block.out += first * call.out_row;
  if (call.residual) block.residual += first * call.residual_row;
  return block;
}

inline Rows rows_of(const Rows &rows, std::int64_t first, std::int64_t count) {
  Rows block = rows;
  block.count = count;
  block.x += first * rows.stride;
  if (rows.split) block.split += first / rows.group * split_size(rows.group, rows.width);
  return block;
}

// Returns a block size, a multiple of `unit`, that divides the rows into blocks of about the same size. It is at most
// `max_block`, rounded up to such a multiple.
inline std::int64_t even_block(std::int64_t rows, std::int64_t max_block, std::int64_t unit) {
  return ceil_div(ceil_div(rows, ceil_div(rows, max_block)), unit) * unit;
}

// Multiplies rows by panels begin..end-1 of a call. `scratch` has panel_scratch() floats.
using PanelFunction = void (*)(const LinearCall &call, const Rows &in, float *scratch, std::int64_t begin,
                               std::int64_t end);
struct AmxKernels {
  PanelFunction multiply_panels;
  // Splits groups begin..end-1 of the rows into bfloat16 parts.
  void (*split_rows)(const Rows &rows, std::int64_t begin, std::int64_t end, std::uint16_t *split);
};

// The kernels for weights of a dtype and layout.
struct Kernels {
  PanelFunction multiply_panels;
  const AmxKernels *amx;  // or null
};

Kernels kernels_for(DType dtype, bool tiled);

// The number of floats for gates, ups and partial sums of `rows` rows, and for a block of widened weights.
std::int64_t panel_scratch(std::int64_t rows, std::int64_t inputs, const Kernels &kernels);

// Rounds an address up to a cache line, because loading a vector that straddles two lines takes twice as long.
// panel_scratch() has room for it.
float *aligned(float *begin);

}  // namespace weft
