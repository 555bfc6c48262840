// Truncation, as a floor for each row: logits below it are not drawn.
//
// Three cuts, in this order. Top-k keeps the k largest, with all ties of the k-th. Top-p keeps the largest of the rest
// until their share of its probability reaches p, with all ties of the last. Min-p keeps those at least m times as
// likely as the likeliest. -inf and NaN never count.
#pragma once

#include <cstdint>

#include "kernels/logits.h"

namespace weft {

// Row i is cut by top_k[i] if 0 < top_k[i] < vocab, by top_p[i] if it is below 1, and by min_p[i] if it is above 0.
// floor[i] is -inf if nothing is cut. The logits of a row without cuts, or of a greedy row, are not read. The
// vocabulary has at most 2^23 columns, so that the sum of a row's masses fits 64 bits.
struct TruncateCall {
  Logits logits;
  const float *temperature;
  const std::int32_t *top_k;
  const float *top_p, *min_p;
  float *floor;
};

void truncation_floor_cpu(const TruncateCall &call, int threads);

}  // namespace weft
