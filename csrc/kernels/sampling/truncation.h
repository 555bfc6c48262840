// Truncation, as a floor for each row: logits below it are not drawn.
//
// There are three cuts, in this order. Top-k keeps the k largest logits and all ties of the k-th. Top-p then keeps the
// largest of these until they have a share p of the probability that top-k left, and all ties of the last. Min-p keeps
// tokens that are at least m times as likely as the likeliest. -inf and NaN never count.
#pragma once

#include <cstdint>

#include "kernels/logits.h"

namespace weft {

struct Cuts;  // the cuts of a row (kernels/sampling/truncation_rule.h)

// Row i is cut by cuts[i]. floor[i] is -inf if nothing is cut; the logits of such a row are not read. The vocabulary
// has at most 2^23 columns, so that the sum of a row's masses fits 64 bits.
struct TruncateCall {
  Logits logits;
  const Cuts *cuts;
  float *floor;
};

void truncation_floor_cpu(const TruncateCall &call, int threads);

}  // namespace weft
