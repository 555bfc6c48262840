// Kernels before the forward pass: they write new sequences to their slots, gather an iteration's inputs from its
// slots, and copy the host's proposed drafts to the slots. The last slot is for rows that pad a batch.
#pragma once

#include <cstdint>

#include "kernels/floats.h"
#include "kernels/sampling/slot_record.h"

namespace weft {

// Writes new sequences to their slots, a record of `record_size` words for each: slot, length, last token, request id,
// processor, the words of a SlotRecord, and then the pages, two in a word. Also clears the slot's drafts, masks and
// temperatures. A record whose slot is the last one or out of range is skipped. All tensors but `records` are by slot,
// `drafts` is [max_drafts, slots].
struct OpenCall {
  std::int64_t rows, record_size, slots, table_width, max_drafts, mask_width, temperatures_width;
  const std::int64_t *records;
  std::int64_t *length, *last_token, *request_ids, *processors;
  std::int32_t *page_table;
  SlotRecord *params;
  std::int64_t *num_verified, *drafts;
  std::int32_t *token_mask;
  float *temperatures;

  // Writes what thread `thread` of `threads` has to write for record b.
  WEFT_HD void open_row(std::int64_t b, std::int64_t thread, std::int64_t threads) const {
    constexpr std::int64_t kHead = 5, kWords = sizeof(SlotRecord) / sizeof(std::int64_t);
    const std::int64_t *record = records + b * record_size;
    const std::int64_t s = record[0];
    if (s < 0 || s >= slots - 1) return;
    if (thread == 0) {
      length[s] = record[1], last_token[s] = record[2], request_ids[s] = record[3], processors[s] = record[4];
      num_verified[s] = 0;
    }
    auto *words = reinterpret_cast<std::int64_t *>(params + s);
    const auto *pages = reinterpret_cast<const std::int32_t *>(record + kHead + kWords);
    for (std::int64_t i = thread; i < kWords; i += threads) words[i] = record[kHead + i];
    for (std::int64_t i = thread; i < table_width; i += threads) page_table[s * table_width + i] = pages[i];
    for (std::int64_t i = thread; i < max_drafts; i += threads) drafts[i * slots + s] = -1;
    for (std::int64_t i = thread; i < mask_width; i += threads) token_mask[s * mask_width + i] = 0;
    for (std::int64_t i = thread; i < temperatures_width; i += threads) temperatures[s * temperatures_width + i] = -1;
  }
};

// Reads slot slot[b] for each row b. The first `sampling_rows` rows continue their texts: for them it writes the slot's
// length to base[b], and its last token and then its drafts (-1: none) to tokens[b * width ...]. For all rows it writes
// the slot's page table to pages[b * table_width ...]. `length`, `last_token`, `drafts` [.., slots] and `page_table`
// are by slot. A slot that is out of range counts as the last one. The tokens of the last slot's rows are not written,
// because their memory may belong to other rows.
struct InputsCall {
  std::int64_t rows, sampling_rows, width, slots, table_width;
  const std::int64_t *slot, *length, *last_token, *drafts;
  const std::int32_t *page_table;
  std::int64_t *base, *tokens;
  std::int32_t *pages;

  WEFT_HD std::int64_t slot_of(std::int64_t b) const {
    const std::int64_t s = slot[b];
    return s >= 0 && s < slots ? s : slots - 1;
  }
  WEFT_HD void read_row(std::int64_t b) const {
    if (b >= sampling_rows) return;
    const std::int64_t s = slot_of(b);
    base[b] = length[s];
    if (s == slots - 1) return;
    tokens[b * width] = last_token[s];
    for (std::int64_t t = 1; t < width; ++t) tokens[b * width + t] = drafts[(t - 1) * slots + s];
  }
};

// Replaces drafts 1..num_drafts of each row's slot by the proposed ones, or by -1 beyond the slot's max_drafts. A row
// whose slot is out of range is skipped. All tensors but `slot` are by slot.
struct ProposalsCall {
  std::int64_t rows, num_drafts, slots;
  const std::int64_t *slot, *proposed;  // proposed [.., slots]
  const SlotRecord *records;
  std::int64_t *drafts;  // [.., slots]

  WEFT_HD void take_row(std::int64_t b) const {
    const std::int64_t s = slot[b];
    if (s < 0 || s >= slots) return;
    for (std::int64_t k = 0; k < num_drafts; ++k)
      drafts[k * slots + s] = k < records[s].max_drafts ? proposed[k * slots + s] : -1;
  }
};

void open_slots_cpu(const OpenCall &call);
void read_slots_cpu(const InputsCall &call);
void take_proposals_cpu(const ProposalsCall &call);

// Enqueue the kernel on `stream` of the current device. Return null, or CUDA's error message.
const char *open_slots_cuda(const OpenCall &call, void *stream);
const char *read_slots_cuda(const InputsCall &call, void *stream);
const char *take_proposals_cuda(const ProposalsCall &call, void *stream);

}  // namespace weft
