// What requests change in their logits before the grammar's mask: penalties on tokens that have come, a bias, and bad
// words. Everything that a request asks for lies on the device by slot.
#pragma once

#include <cstdint>

#include "kernels/logits.h"

namespace weft {

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
};

// Logits row i belongs to slot[i], and stands after history_length[i] tokens of its history and, of the
// `extra_width` in its row of `extra`, the first num_extra[i] tokens that are not -1. With `d2t`, column c stands for
// token c + d2t[c].
struct PenalizeCall {
  Logits logits;
  PenaltyTables tables;
  const std::int64_t *slot, *history_length, *extra, *num_extra;
  std::int64_t extra_width;
  const std::int64_t *d2t;  // or null
};

// A row whose slot is out of bounds is left alone.
void penalize_cpu(const PenalizeCall &call, int threads);

}  // namespace weft
