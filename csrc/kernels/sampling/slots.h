// Sampling by slot: what a request asks of its logits lies on the device in its slot's row, so that one captured call
// serves every mix of requests. A slot that asks for nothing costs a look at its flags.
#pragma once

#include <cstdint>

#include "kernels/floats.h"
#include "kernels/logits.h"
#include "kernels/sampling/penalties.h"
#include "support/held_slot.h"

namespace weft {

// How top-p changes from token to token. By slot: what it begins with; what each token multiplies it by, and the least
// that this leaves (1 and 0: it stays); the token after which it begins anew, -1 for none.
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

// By slot, R = penalties.slots rows each; what each means is said at the calls that take it one by one.
struct SlotTables {
  PenaltyTables penalties;
  const float *temperature, *top_p, *min_p;
  const std::int64_t *seed, *until;
  const std::int32_t *top_k, *max_drafts;
  const std::int32_t *ends;  // `ends_width` by slot
  std::int64_t ends_width;
  TopPTables top_p_rule;  // of `top_p`, which is that of the token after the slot's text
};

// Logits row b * positions + t is of batch row b, whose slot is slot[b]: it stands after base[b] + count[b] + offset
// tokens of the slot's text and the first first_extra + t of its row of `extra`, drafts that are not committed. In this
// order: penalties, bias, bad words and n-grams; min_tokens, where `keeps_min_tokens`; levelling; truncation; the draw.
// The logits keep what the first three changed. Writes target ids to `out`; -1 where there is no token.
//
// A call for drafts goes on: what the host `proposed` for a slot goes before; a draft beyond the slot's max_drafts is
// none; the draft is written to its slot's place in `drafts` and `drafts_host`, too.
struct SlotCall {
  Logits logits;
  std::int64_t positions;
  SlotTables tables;
  const std::int64_t *slot, *base;
  const std::int64_t *count;  // or null: 0
  std::int64_t offset;
  const std::int64_t *extra;  // extra[b * row_stride + e * token_stride], or by slot instead of b
  std::int64_t num_extra, row_stride, token_stride;
  bool extra_by_slot;
  std::int64_t first_extra;
  const float *wanted;  // temperatures by slot that go before the request's where they are >= 0; or null
  std::int64_t wanted_width;
  bool keeps_min_tokens;
  const std::int64_t *d2t;  // or null
  std::int64_t *out;
  std::int64_t draft_number;     // from 1; 0: these are no drafts
  const std::int64_t *proposed;  // by slot, or null
  std::int64_t *drafts;          // by slot
  std::int64_t *drafts_host;     // by slot, in the host's memory; or null

  WEFT_HD std::int64_t slot_of(std::int64_t i) const {
    const std::int64_t s = slot[i / positions];
    return s >= 0 && s < tables.penalties.slots ? s : 0;
  }
  WEFT_HD std::int64_t length_of(std::int64_t i) const {
    const std::int64_t b = i / positions;
    return base[b] + (count ? count[b] : 0) + offset;
  }
  WEFT_HD std::int64_t seen_by(std::int64_t i) const { return first_extra + i % positions; }
  WEFT_HD float temperature_of(std::int64_t i) const {
    const std::int64_t s = slot_of(i);
    // Drafts are guesses: the temperature of the first position will do for all.
    const float other = wanted ? wanted[s * wanted_width + i % positions] : -1.0f;
    return other >= 0 ? other : tables.temperature[s];
  }
  // After the drafts before the position.
  WEFT_HD float top_p_of(std::int64_t i) const {
    const std::int64_t s = slot_of(i), seen = seen_by(i) < num_extra ? seen_by(i) : num_extra;
    float top_p = tables.top_p[s];
    if (!tables.top_p_rule.changes(s)) return top_p;
    for (std::int64_t e = 0; e < seen; ++e) top_p = tables.top_p_rule.next(s, top_p, extra_of(i, e));
    return top_p;
  }
  WEFT_HD std::int64_t extra_of(std::int64_t i, std::int64_t e) const {
    return extra[(extra_by_slot ? slot_of(i) : i / positions) * row_stride + e * token_stride];
  }
  WEFT_HD void write_draft(std::int64_t b) const {
    const std::int64_t s = slot_of(b), own = proposed ? proposed[s] : -1;
    const std::int64_t draft = draft_number > tables.max_drafts[s] ? -1 : own >= 0 ? own : out[b];
    out[b] = drafts[s] = draft;
    if (drafts_host) drafts_host[s] = draft;
  }
};

void sample_slots_cpu(const SlotCall &call, int threads);

// Enqueued to `stream` of the current device, which has `sms` multiprocessors. Returns null, or what CUDA said.
const char *sample_slots_cuda(const SlotCall &call, int sms, void *stream);

// Verification, and what it moves: of batch row b, `width` tokens were sampled at its positions, the drafts among
// `inputs` [b * width + 1 ...] but one; those that equal what was sampled before them are accepted. Where `is_counted`,
// `count` holds how many are taken instead. Writes count and tokens, moves the slot to the end of the accepted drafts
// and the token after them, notes how many drafts there were, clears the drafts from number `width` on, counts the
// tokens for slots with penalties, and changes top-p by them. The slot that only pads stays at length 0.
struct AdvanceCall {
  std::int64_t rows, width, slots, padding_slot;
  const std::int64_t *slot, *base, *inputs, *sampled;
  bool is_counted;
  std::int64_t *count, *tokens;  // tokens [rows, width] are `sampled`, unless they are the same memory
  std::int64_t *verified;        // [slots, verified_width]: count, then tokens
  std::int64_t verified_width;
  std::int64_t *verified_host;                   // the same, in the host's memory
  std::int64_t *last_token, *length, *proposed;  // by slot
  std::int64_t *drafts;                          // [max_drafts, slots]
  std::int64_t max_drafts;
  const std::int32_t *active;
  const std::int32_t *held;  // slots that stay where they are: their count becomes kHeldSlot
  std::int32_t *counts, *history;
  std::int64_t vocab, history_width;
  float *top_p;  // by slot
  TopPTables top_p_rule;
};

void advance_slots_cpu(const AdvanceCall &call);
const char *advance_slots_cuda(const AdvanceCall &call, void *stream);

// Copies the rows of logits whose slot wants its log-probabilities; both tensors have the same shape and dtype.
struct KeepCall {
  Logits from;
  void *to;  // contiguous
  std::int64_t positions, slots;
  const std::int64_t *slot;
  const std::int32_t *wanted;  // by slot
};

void keep_logits_cpu(const KeepCall &call);
const char *keep_logits_cuda(const KeepCall &call, void *stream);

}  // namespace weft
