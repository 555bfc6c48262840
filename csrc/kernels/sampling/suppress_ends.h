// min_tokens: the tokens that would end a request are blocked until it has as many as it wants. The grammar beats this:
// where nothing else is left, the ends stay.
#pragma once

#include <cstdint>

#include "kernels/logits.h"

namespace weft {

// Logits row i belongs to slot[i]; before position until[slot[i]] the tokens of that slot's row of `ends`, -1 for none,
// are blocked, unless every other logit of the row is -inf or NaN. A row whose slot is out of bounds is left alone.
struct SuppressCall {
  Logits logits;
  const std::int32_t *ends;  // `width` by slot
  const std::int64_t *until;
  std::int64_t slots, width;
  const std::int64_t *slot, *position;

  // The row's ends, or null where they are not to be blocked.
#if defined(__CUDACC__)
  __host__ __device__
#endif
      const std::int32_t *
      ends_of(std::int64_t i) const {
    const std::int64_t s = slot[i];
    return s >= 0 && s < slots && position[i] < until[s] ? ends + s * width : nullptr;
  }
};

void suppress_ends_cpu(const SuppressCall &call, int threads);

}  // namespace weft
