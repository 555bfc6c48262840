// Truncation, as a floor for each row: logits below it are not drawn.
//
// Three cuts, in this order. Top-k keeps the k largest, with all ties of the k-th. Top-p keeps the largest of the rest
// until their share of its probability reaches p, with all ties of the last. Min-p keeps those at least m times as
// likely as the likeliest. -inf and NaN never count.
#pragma once

#include <cstdint>

#include "kernels/logits.h"

namespace weft {

// Row i is cut by top_k[i], unless it is <= 0 or >= vocab, top_p[i], unless it is >= 1, and min_p[i], unless it is <=
// 0. Where nothing is cut, floor[i] is -inf; a row without cuts, or a greedy one, is not read. The vocabulary has at
// most 2^23 columns, so that the sum of a row's masses fits 64 bits.
struct TruncateCall {
  Logits logits;
  const float *temperature;
  const std::int32_t *top_k;
  const float *top_p, *min_p;
  float *floor;
};

void truncation_floor_cpu(const TruncateCall &call, int threads);

}  // namespace weft
