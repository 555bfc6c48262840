// Levelling: logits that a bias has brought far from 0 are moved back, all of a row alike, so that what is drawn stays
// the same and float32 can still tell noise apart.
#pragma once

#include <cstdint>

#include "kernels/sampling/penalties.h"

namespace weft {

// Logits row i belongs to slot[i]. Where that slot's bias is wide, the row's largest logit is taken from all, unless it
// is infinite; what is finite stays so. A row whose slot is out of bounds is left alone.
struct LevelCall {
  Logits logits;
  PenaltyTables tables;
  const std::int64_t *slot;
};

void level_cpu(const LevelCall &call, int threads);

}  // namespace weft
