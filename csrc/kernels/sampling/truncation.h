// Truncation: which logits of a row may be drawn at all, as a floor below which none may.
//
// One after another: top-k keeps the k largest, ties with the k-th included; top-p keeps the largest of these whose
// share of their probability reaches p, the one that reaches it and ties included; min-p keeps those whose probability
// is at least m times the largest. -inf and NaN never count.
#pragma once

#include <cstdint>

#include "kernels/logits.h"

namespace weft {

// Row i: temperature[i], and what keeps everything: top_k[i] <= 0 or >= vocab, top_p[i] >= 1, min_p[i] <= 0. Writes
// -inf to floor[i] where nothing is cut, without a look at the logits where nothing is asked for or the row is greedy.
// The vocabulary has at most 2^23 columns, so that the sum of a row's masses fits 64 bits.
struct TruncateCall {
  Logits logits;
  const float *temperature;
  const std::int32_t *top_k;
  const float *top_p, *min_p;
  float *floor;
};

void truncation_floor_cpu(const TruncateCall &call, int threads);

}  // namespace weft
