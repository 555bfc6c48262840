// What requests change in their logits before the grammar's mask: penalties on tokens that have come, a bias, bad
// words, and n-grams that may not come twice; and, after the mask, what a wide bias leaves to do. Everything that a
// request asks for lies on the device by slot.
#pragma once

#include <cstdint>

#include "kernels/logits.h"

namespace weft {

constexpr std::int32_t kWideBias = 2;  // of `biased`: the bias goes beyond what the draw's noise can be added to

// By slot; a row of `counts` and `bias` has `vocab` entries, the target's vocabulary.
struct PenaltyTables {
  std::int64_t slots, vocab, bad_width, history_width;
  const std::int32_t *active;                      // 0: the slot asks for nothing
  const float *repetition, *presence, *frequency;  // 1, 0, 0: none
  const std::int32_t *counts;                      // how often a token stands in the output
  const std::uint32_t *prompt;                     // bit t % 32 of word t / 32: token t stands in the prompt
  const float *bias;
  const std::int32_t *biased;     // 0: the bias is none
  const std::int32_t *bad_words;  // sequences of tokens, each ended by -1 or the end; an empty one ends the list
  const std::int32_t *history;    // prompt and output by position
  const std::int32_t *after_temperature;  // 0: penalties, then the bias; else the bias, the temperature, then penalties
  const std::int32_t *no_repeat;          // the length of n-grams that do not come twice; 0: none
};

// Logits row i belongs to slot[i], and stands after history_length[i] tokens of its history and, of the
// `extra_width` in its row of `extra`, the first num_extra[i] tokens that are not -1. With `d2t`, column c stands for
// token c + d2t[c]. `temperature` is what the row is drawn with.
struct PenalizeCall {
  Logits logits;
  PenaltyTables tables;
  const std::int64_t *slot, *history_length, *extra, *num_extra;
  std::int64_t extra_width;
  const std::int64_t *d2t;  // or null
  const float *temperature;
};

// A row whose slot is out of bounds is left alone.
void penalize_cpu(const PenalizeCall &call, int threads);

// Levelling: logits that a bias has brought far from 0 are moved back, all of a row alike, so that what is drawn stays
// the same and float32 can still tell noise apart. Logits row i belongs to slot[i]; where that slot's bias is wide, the
// row's largest logit is taken from all, unless it is infinite; what is finite stays so.
struct LevelCall {
  Logits logits;
  PenaltyTables tables;
  const std::int64_t *slot;
};

void level_cpu(const LevelCall &call, int threads);

}  // namespace weft
