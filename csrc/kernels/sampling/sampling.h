// Coupled sampling: the token of a row is the argmax of logits / temperature + noise. The noise is a function of
// request seed, position and target token id (kernels/sampling/gumbel.h), so a row's result depends on that row alone.
#pragma once

#include <cstdint>

#include "kernels/logits.h"

namespace weft {

struct RowDraw;  // the parameters of a row's draw (kernels/sampling/sample_rule.h)

// Row i is drawn by draws[i]. With `d2t`, column c is token c + d2t[c]. Writes target token ids to `out`; -1 for a row
// that is skipped, or whose logits are all -inf or NaN. Among equal sums the lowest token id wins. Logits below the
// row's floor count as -inf.
struct SampleCall {
  Logits logits;
  const RowDraw *draws;
  const std::int64_t *d2t;  // or null
  std::int64_t *out;
};

void sample_cpu(const SampleCall &call, int threads);

}  // namespace weft
