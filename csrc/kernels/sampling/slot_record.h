// A slot's record in device memory has the sampling parameters of the slot's request. Other tables have further data
// for each slot. A captured call reads records and tables, so it serves every mix of requests.
//
// The list below defines the fields. From it come the struct, Python's `_core.SlotRecord` with its documentation, and
// the views of the device's records (weft/ops/slots.py). A field with the name of a field of `SamplingParams` gets its
// value from there (weft/engine/device/sampling.py).
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/floats.h"

namespace weft {

// The kind of a slot's bias. kWide means that it is so large that float32 would lose the noise of the draw in the sum.
enum class BiasKind : std::int32_t { kNone, kPlain, kWide };

// FIELD(type, name, neutral value, documentation). Fields of 8 bytes come first, so the only gap may be at the end.
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

// A default record is greedy and changes no logits.
struct SlotRecord {
#define WEFT_FIELD(type, name, neutral, doc) type name = neutral;
  WEFT_SLOT_FIELDS(WEFT_FIELD)
#undef WEFT_FIELD

  WEFT_HD bool changes_top_p() const { return top_p_decay != 1 || top_p_min > 0; }
  // Returns top-p after `token` if it was `current` before. A token of -1 changes nothing.
  WEFT_HD float next_top_p(float current, std::int64_t token) const {
    if (token < 0) return current;
    if (token == top_p_reset_id) return top_p_start;
    const float decayed = mul_rn(current, top_p_decay);
    return decayed > top_p_min ? decayed : top_p_min;
  }
};

// Python copies records as words of 8 bytes.
static_assert(std::is_trivially_copyable_v<SlotRecord> && sizeof(SlotRecord) % 8 == 0);

// The device's data of all slots: one record per slot, and one row per slot of each other table. `counts` and `bias`
// have `vocab` columns, the target's vocabulary. The last slot is for rows that pad a batch.
struct SlotTables {
  std::int64_t slots, vocab, bad_width, history_width, ends_width;
  SlotRecord *records;
  std::int32_t *counts;           // occurrences of each token in the text that presence and frequency penalties count
  const std::uint32_t *prompt;    // bit t % 32 of word t / 32: token t occurs in the prompt
  const float *bias;              // added to the logits; -inf forbids
  const std::int32_t *bad_words;  // sequences of tokens, each ended by -1 or the row's end; an empty one ends the list
  std::int32_t *history;          // prompt and output by position
  const std::int32_t *ends;       // end tokens; -1 for none

  WEFT_HD bool has(std::int64_t slot) const { return slot >= 0 && slot < slots; }
  WEFT_HD bool is_padding(std::int64_t slot) const { return slot == slots - 1; }
  WEFT_HD bool changes_logits(std::int64_t slot) const { return has(slot) && records[slot].changes_logits; }
  // Whether the slot needs levelling (kernels/sampling/penalties.h).
  WEFT_HD bool levels(std::int64_t slot) const {
    return changes_logits(slot) && records[slot].bias_kind == BiasKind::kWide;
  }
  // The slot's end tokens if they are blocked at `position`, else null.
  WEFT_HD const std::int32_t *blocked_ends(std::int64_t slot, std::int64_t position) const {
    return has(slot) && position < records[slot].ends_allowed_from ? ends + slot * ends_width : nullptr;
  }
};

}  // namespace weft
