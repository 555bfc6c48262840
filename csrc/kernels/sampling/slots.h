// Sampling by slot: every row of a call is sampled with the parameters in its slot's record, so one captured call
// serves every mix of requests. A step that a slot does not need costs only a read of the slot's record.
#pragma once

#include <cstdint>

#include "kernels/logits.h"
#include "kernels/sampling/slot_record.h"
#include "support/held_slot.h"

namespace weft {

// Logits row b * positions + t belongs to batch row b, whose slot is slot[b]. Its context is the first base[b] +
// count[b] + offset tokens of the slot's text, and then uncommitted drafts. These are the first first_extra + t tokens
// of its row of `extra`, which has num_extra.
//
// The steps are, in order: penalties, bias, bad words and n-grams; min_tokens, if `keeps_min_tokens`; levelling;
// truncation; the draw. The first three steps change the logits in place. `out` gets target token ids, and -1 for a row
// without a token. The logits of the padding slot's rows are neither read nor written, and `out` gets -1.
//
// A call that samples drafts has one more step. A token that the host `proposed` for a slot replaces the drawn one, and
// a draft beyond the slot's max_drafts becomes -1. The draft is also written to its slot's place in `drafts` and
// `drafts_host`.
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
  const float *temperatures;  // [slots, temperatures_width]: where >= 0, they replace the record's; or null
  std::int64_t temperatures_width;
  bool keeps_min_tokens;
  const std::int64_t *d2t;  // or null
  std::int64_t *out;
  std::int64_t draft_number;     // from 1; 0: the call does not sample drafts
  const std::int64_t *proposed;  // by slot, or null
  std::int64_t *drafts;          // by slot
  std::int64_t *drafts_host;     // by slot, in the host's memory; or null

  WEFT_HD std::int64_t slot_of(std::int64_t i) const {
    const std::int64_t s = slot[i / positions];
    return tables.has(s) ? s : 0;
  }
  WEFT_HD bool is_padding(std::int64_t i) const { return tables.is_padding(slot[i / positions]); }
  WEFT_HD const SlotRecord &record_of(std::int64_t i) const { return tables.records[slot_of(i)]; }
  WEFT_HD std::int64_t length_of(std::int64_t i) const {
    const std::int64_t b = i / positions;
    return base[b] + (count ? count[b] : 0) + offset;
  }
  WEFT_HD std::int64_t seen_by(std::int64_t i) const { return first_extra + i % positions; }
  WEFT_HD std::int64_t position_of(std::int64_t i) const { return length_of(i) + seen_by(i); }
  WEFT_HD float temperature_of(std::int64_t i) const {
    // In a call for drafts t is always 0, so all drafts use the first position's temperature. Drafts need not be exact.
    const float guided = temperatures ? temperatures[slot_of(i) * temperatures_width + i % positions] : -1.0f;
    return guided >= 0 ? guided : record_of(i).temperature;
  }
  // The row's top-p, which the drafts before its position may have changed.
  WEFT_HD float top_p_of(std::int64_t i) const {
    const SlotRecord &record = record_of(i);
    if (!record.changes_top_p()) return record.top_p;
    const std::int64_t seen = seen_by(i) < num_extra ? seen_by(i) : num_extra;
    float top_p = record.top_p;
    for (std::int64_t e = 0; e < seen; ++e) top_p = record.next_top_p(top_p, extra_of(i, e));
    return top_p;
  }
  WEFT_HD std::int64_t extra_of(std::int64_t i, std::int64_t e) const {
    return extra[(extra_by_slot ? slot_of(i) : i / positions) * row_stride + e * token_stride];
  }
  WEFT_HD void write_draft(std::int64_t b) const {
    if (is_padding(b)) return;
    const std::int64_t s = slot_of(b), from_host = proposed ? proposed[s] : -1;
    const bool is_within_limit = draft_number <= tables.records[s].max_drafts;
    const std::int64_t draft = !is_within_limit ? -1 : from_host >= 0 ? from_host : out[b];
    out[b] = drafts[s] = draft;
    if (drafts_host) drafts_host[s] = draft;
  }
};

void sample_slots_cpu(const SlotCall &call, int threads);

// Enqueues the kernel on `stream` of the current device, which has `sms` multiprocessors. Returns null, or CUDA's error
// message.
const char *sample_slots_cuda(const SlotCall &call, int sms, void *stream);

// Verification, and the update of the slots. Batch row b has `width` sampled tokens. Its drafts are inputs[b * width +
// 1] up to the end of its row of `inputs`. Drafts are accepted as long as they equal the sampled tokens. With
// `is_counted`, `count` already has their number, and `sampled` then holds the accepted drafts in its first places. The
// call
//  - writes count, tokens, and the slot's rows of `verified` and `verified_host`,
//  - advances the slot past the accepted drafts and the token after them,
//  - records the number of drafts that it verified, and clears the drafts from number `width` on,
//  - updates top-p by the tokens, and for slots that change logits counts them and writes them to the history.
// For a held slot it does only the first of these. A row of the padding slot, or of a slot out of range, is skipped:
// nothing of it is written.
struct AdvanceCall {
  std::int64_t rows, width;
  SlotTables tables;
  const std::int64_t *slot, *base, *inputs, *sampled;
  bool is_counted;
  std::int64_t *count, *tokens;  // tokens [rows, width] may be the memory of `sampled`
  std::int64_t *verified;        // [slots, verified_width]: count, or kHeldSlot for a held slot; then tokens
  std::int64_t verified_width;
  std::int64_t *verified_host;                       // the same, in the host's memory
  std::int64_t *last_token, *length, *num_verified;  // by slot
  std::int64_t *drafts;                              // [max_drafts, slots]
  std::int64_t max_drafts;
};

void advance_slots_cpu(const AdvanceCall &call);
const char *advance_slots_cuda(const AdvanceCall &call, void *stream);

// Copies the rows of logits whose slot wants log-probabilities. Both tensors have the same shape and dtype.
struct KeepCall {
  Logits from;
  void *to;  // contiguous
  std::int64_t positions, slots;
  const std::int64_t *slot;
  const SlotRecord *records;

  WEFT_HD bool keeps(std::int64_t i) const {
    const std::int64_t s = slot[i / positions];
    return s >= 0 && s < slots && records[s].wants_logprobs;
  }
};

void keep_logits_cpu(const KeepCall &call);
const char *keep_logits_cuda(const KeepCall &call, void *stream);

}  // namespace weft
