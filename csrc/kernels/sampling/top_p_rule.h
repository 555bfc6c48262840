// How top-p changes from token to token: the same on every device.
#pragma once

#include "kernels/floats.h"

namespace weft {

// By slot: what top-p begins with; what each token multiplies it by, and the least that leaves (1 and 0: it stays); the
// token after which it begins anew, -1 for none.
struct TopPTables {
  const float *first, *decay, *least;
  const std::int32_t *reset;

  WEFT_HD bool changes(std::int64_t slot) const { return decay[slot] != 1 || least[slot] > 0; }
  // After `token`, where that is one.
  WEFT_HD float next(std::int64_t slot, float top_p, std::int64_t token) const {
    if (token < 0) return top_p;
    if (token == reset[slot]) return first[slot];
    const float less = mul_rn(top_p, decay[slot]);
    return less > least[slot] ? less : least[slot];
  }
};

}  // namespace weft
