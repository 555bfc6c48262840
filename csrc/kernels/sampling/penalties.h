// Changes to a request's logits before the draw: penalties on tokens of the text, a bias, bad words, n-grams that may
// not repeat, and levelling, which a wide bias needs.
#pragma once

#include <cstdint>

#include "kernels/logits.h"
#include "kernels/sampling/slot_record.h"

namespace weft {

// Logits row i belongs to slot[i]. Its context is the first history_length[i] tokens of the slot's history, then the
// first num_extra[i] tokens of its row of `extra` (`extra_width` wide), skipping any -1. With `d2t`, column c is token
// c + d2t[c]. temperature[i] is the temperature of the draw.
struct PenalizeCall {
  Logits logits;
  SlotTables tables;
  const std::int64_t *slot, *history_length, *extra, *num_extra;
  std::int64_t extra_width;
  const std::int64_t *d2t;  // or null
  const float *temperature;
};

// A row whose slot is out of bounds is unchanged.
void penalize_cpu(const PenalizeCall &call, int threads);

// Levelling moves logits back towards 0 after a large bias, so that float32 does not lose the noise when it is added.
// All logits of a row move by the same amount, so the draw stays the same. Logits row i belongs to slot[i]. If that
// slot's bias is wide, the row's largest logit is subtracted from all its logits, unless it is infinite. Finite logits
// stay finite.
struct LevelCall {
  Logits logits;
  SlotTables tables;
  const std::int64_t *slot;
};

void level_cpu(const LevelCall &call, int threads);

}  // namespace weft
