// A slot's record: the numbers that the slot's request puts on its logits, as the device keeps them, and the tables
// beside the records. One captured call reads them, so it serves every mix of requests.
//
// The list below is the one source of the fields: the struct here, `_core.SlotRecord` of Python with its documentation,
// and the views of the device's records (weft/ops/slots.py) are made from it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/floats.h"

namespace weft {

// Whether a slot's bias is read. kWide: it goes beyond what the draw's noise can be added to in float32.
enum class BiasKind : std::int32_t { kNone, kPlain, kWide };

// FIELD(type, name, neutral value, documentation). Fields of 8 bytes come first, so that the struct has no gaps.
#define WEFT_SLOT_FIELDS(FIELD)                                                                                      \
  FIELD(std::int64_t, seed, 0, "Seed of the noise.")                                                                 \
  FIELD(std::int64_t, ends_allowed_from, 0, "First position at which an end token may be drawn.")                    \
  FIELD(float, temperature, 0, "Divides the logits. Below 1e-5, or NaN: the largest logit wins, without noise.")     \
  FIELD(float, top_p, 1, "Top-p of the token after the slot's text; 1 or more cuts nothing.")                        \
  FIELD(float, top_p_start, 1, "Top-p of the first token, and of the token after top_p_reset_id.")                   \
  FIELD(float, top_p_decay, 1, "Factor by which each token changes top_p.")                                          \
  FIELD(float, top_p_min, 0, "Lower bound of top_p after each token.")                                               \
  FIELD(float, min_p, 0, "Tokens less than this times as likely as the likeliest are cut; 0 or less cuts nothing.")  \
  FIELD(float, repetition_penalty, 1, "Divides positive and multiplies other logits of tokens in prompt or output.") \
  FIELD(float, presence_penalty, 0, "Subtracted from the logits of counted tokens, once.")                           \
  FIELD(float, frequency_penalty, 0, "Subtracted from the logits of counted tokens, once for each count.")           \
  FIELD(std::int32_t, top_k, 0, "Number of largest logits that are kept; 0 or less keeps all.")                      \
  FIELD(std::int32_t, top_p_reset_id, -1, "Token after which top_p is top_p_start again; -1 for none.")              \
  FIELD(std::int32_t, changes_logits, 0, "Whether the slot has penalties, a bias, bad words or an n-gram limit.")    \
  FIELD(BiasKind, bias_kind, BiasKind::kNone, "Whether the slot's bias is read, and whether it is a wide one.")      \
  FIELD(std::int32_t, penalties_after_temperature, 0, "Whether bias and temperature act before the penalties.")      \
  FIELD(std::int32_t, no_repeat_ngram_size, 0, "Length of n-grams that may not repeat; 0 for none.")                 \
  FIELD(std::int32_t, max_drafts, 0, "Number of drafts that the slot may have.")                                     \
  FIELD(std::int32_t, wants_logprobs, 0, "Whether the request wants log-probabilities.")                             \
  FIELD(std::int32_t, is_held, 0, "Whether the host chooses the tokens: verification leaves the slot in place.")

// A default record asks for nothing: the largest logit wins.
struct SlotRecord {
#define WEFT_FIELD(type, name, neutral, doc) type name = neutral;
  WEFT_SLOT_FIELDS(WEFT_FIELD)
#undef WEFT_FIELD

  WEFT_HD bool changes_top_p() const { return top_p_decay != 1 || top_p_min > 0; }
  // Top-p after `token`, where it was `current` before. A token of -1 is none.
  WEFT_HD float next_top_p(float current, std::int64_t token) const {
    if (token < 0) return current;
    if (token == top_p_reset_id) return top_p_start;
    const float decayed = mul_rn(current, top_p_decay);
    return decayed > top_p_min ? decayed : top_p_min;
  }
};

// Python copies records as words of 8 bytes.
static_assert(std::is_trivially_copyable_v<SlotRecord> && sizeof(SlotRecord) % 8 == 0);

// What the device knows of every slot: a record each, and a row each of the other tables. `counts` and `bias` have
// `vocab` columns, the target's vocabulary.
struct SlotTables {
  std::int64_t slots, vocab, bad_width, history_width, ends_width;
  SlotRecord *records;
  std::int32_t *counts;           // how often each token stands in what presence and frequency penalties count
  const std::uint32_t *prompt;    // bit t % 32 of word t / 32: token t stands in the prompt
  const float *bias;              // added to the logits; -inf forbids
  const std::int32_t *bad_words;  // sequences of tokens, each ended by -1 or the row's end; an empty one ends the list
  std::int32_t *history;          // prompt and output by position
  const std::int32_t *ends;       // end tokens; -1 for none

  WEFT_HD bool has(std::int64_t slot) const { return slot >= 0 && slot < slots; }
  WEFT_HD bool changes_logits(std::int64_t slot) const { return has(slot) && records[slot].changes_logits; }
  // Whether the slot's logits are levelled (kernels/sampling/penalties.h).
  WEFT_HD bool levels(std::int64_t slot) const {
    return changes_logits(slot) && records[slot].bias_kind == BiasKind::kWide;
  }
  // The slot's end tokens, or null where they may be drawn at `position`.
  WEFT_HD const std::int32_t *blocked_ends(std::int64_t slot, std::int64_t position) const {
    return has(slot) && position < records[slot].ends_allowed_from ? ends + slot * ends_width : nullptr;
  }
};

}  // namespace weft
