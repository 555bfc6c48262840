// Token bitmasks: applying them to logits, and copying them to the device.
//
// Bit t of a mask row is bit t % 32 of word t / 32; 1 allows token t. Tokens beyond the mask are blocked.
#pragma once

#include <cstdint>

#include "kernels/floats.h"
#include "kernels/logits.h"

namespace weft {

// Maps rows of logits to mask rows. Without a list, row i uses mask row i. A list (int32 or int64) gives the mask row
// of each row. In the by-slot form (`positions` > 0), the list gives the slot of each batch row instead. A batch row
// has `positions` rows of logits. A slot has `per_slot` mask rows, of which those from `first` on are used.
struct RowList {
  const void *data;
  bool is64;
  std::int64_t positions = 0, per_slot = 0, first = 0;  // positions is 0 unless by slot

  WEFT_HD std::int64_t number(std::int64_t i) const {
    return is64 ? static_cast<const std::int64_t *>(data)[i] : static_cast<const std::int32_t *>(data)[i];
  }
  WEFT_HD std::int64_t at(std::int64_t i) const {
    if (!data) return i;
    return positions ? number(i / positions) * per_slot + first + i % positions : number(i);
  }
};

struct TokenBitmask {
  const std::uint32_t *data;
  std::int64_t rows, words, stride;  // stride in words
};

// Applies mask row rows.at(i) to row i of the logits, unless token_mask[i] (by slot: token_mask[rows.at(i)]) is 0. With
// `d2t`, column c stands for token c + d2t[c].
struct ApplyCall {
  Logits logits;
  TokenBitmask bitmask;
  RowList rows;
  const std::int32_t *token_mask;  // or null
  const std::int64_t *d2t;         // or null

  // Whether row i is skipped. `row` is rows.at(i), which must be in bounds.
  WEFT_HD bool skips(std::int64_t i, std::int64_t row) const {
    return token_mask && !token_mask[rows.positions ? row : i];
  }
};

// Copies the flags and temperatures (if any) of the listed rows, and the masks of those whose flag is not 0.
struct CopyCall {
  std::uint32_t *dst_masks;
  const std::uint32_t *src_masks;
  std::int64_t mask_rows, words, dst_stride, src_stride;
  std::int32_t *dst_token_mask;
  const std::int32_t *src_token_mask;
  RowList rows;
  std::int64_t count;  // of rows
  float *dst_temperatures = nullptr;
  const float *src_temperatures = nullptr;
};

// The CPU kernels. They return -1, or the first i whose row number is out of bounds; then nothing was written.
std::int64_t apply_token_bitmask_cpu(const ApplyCall &call, int threads);
std::int64_t copy_mask_rows_cpu(const CopyCall &call);

// The architectures that the kernels below were compiled for, as CMake names them. "" in a build without CUDA, where
// they return an error.
const char *cuda_architectures();

// The CUDA kernels, enqueued on `stream` of the current device, which has `sms` multiprocessors. They return null, or
// CUDA's error message. If a row number is out of bounds, apply blocks the whole row of logits (unless token_mask[i] is
// 0, when not by slot), and copy skips the row.
const char *apply_token_bitmask_cuda(const ApplyCall &call, int sms, void *stream);
const char *copy_mask_rows_cuda(const CopyCall &call, void *stream);

}  // namespace weft
