// min_tokens: the end tokens of a slot are blocked before the record's `ends_allowed_from`. The grammar takes
// precedence: if every other logit is -inf, the end tokens stay.
#pragma once

#include <cstdint>

#include "kernels/logits.h"
#include "kernels/sampling/slot_record.h"

namespace weft {

// Logits row i belongs to slot[i] and is for the token at position[i]. A row whose slot is out of bounds is unchanged.
struct SuppressCall {
  Logits logits;
  SlotTables tables;
  const std::int64_t *slot, *position;

  // The row's end tokens if they are blocked, else null.
  WEFT_HD const std::int32_t *ends_of(std::int64_t i) const { return tables.blocked_ends(slot[i], position[i]); }
};

void suppress_ends_cpu(const SuppressCall &call, int threads);

}  // namespace weft
