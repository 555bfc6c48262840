// Token bitmasks on logits: apply them, and copy them to the device.
//
// Bit t of a mask row is bit t % 32 of word t / 32; 1 allows token t. What a mask does not cover is blocked.
#pragma once

#include <cstdint>

#include "kernels/floats.h"
#include "kernels/logits.h"

namespace weft {

// The mask row of each row: a list of numbers, int32 or int64, or none: then every row has its own number. By slot, the
// list has the slot of each batch row, which has `positions` rows, and of a slot's `per_slot` mask rows they take those
// from `first` on.
struct RowList {
  const void *data;
  bool is64;
  std::int64_t positions = 0, per_slot = 0, first = 0;  // positions: 0 unless by slot

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

// Logits row i takes mask row rows.at(i), unless token_mask[i] is 0, by slot: that of the mask row. With `d2t`, column
// c stands for token c + d2t[c].
struct ApplyCall {
  Logits logits;
  TokenBitmask bitmask;
  RowList rows;
  const std::int32_t *token_mask;  // or null
  const std::int64_t *d2t;         // or null

  // `row` is rows.at(i), and there.
  WEFT_HD bool skips(std::int64_t i, std::int64_t row) const {
    return token_mask && !token_mask[rows.positions ? row : i];
  }
};

// Copies the flags and the temperatures, if any, and, where the source's flag is not 0, the mask rows that `rows`
// lists.
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

// On the CPU: returns -1, or the first i whose rows[i] is out of bounds, before anything was written.
std::int64_t apply_token_bitmask_cpu(const ApplyCall &call, int threads);
std::int64_t copy_mask_rows_cpu(const CopyCall &call);

// The architectures that the kernels below were compiled for, as CMake names them; "" where this build has none, and
// then they return an error.
const char *cuda_architectures();

// On CUDA: enqueued to `stream` of the current device; `sms` is its number of multiprocessors. They return null, or
// what CUDA said. A row number out of bounds blocks its whole logits row; a copy skips it.
const char *apply_token_bitmask_cuda(const ApplyCall &call, int sms, void *stream);
const char *copy_mask_rows_cuda(const CopyCall &call, void *stream);

}  // namespace weft
