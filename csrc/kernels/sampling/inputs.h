// Kernels before the forward pass: they gather an iteration's inputs from its slots, and copy the host's proposed
// drafts to the slots.
#pragma once

#include <cstdint>

#include "kernels/floats.h"
#include "kernels/sampling/slot_record.h"

namespace weft {

// Reads slot slot[b] for each batch row b. Writes the slot's length to base[b], its last token and then its drafts (-1:
// none) to tokens[b * width ...], and its page table to pages[b * table_width ...]. `length`, `last_token`, `drafts`
// [.., slots] and `page_table` are by slot. A slot that is out of range counts as the last one.
struct InputsCall {
  std::int64_t rows, width, slots, table_width;
  const std::int64_t *slot, *length, *last_token, *drafts;
  const std::int32_t *page_table;
  std::int64_t *base, *tokens;
  std::int32_t *pages;

  WEFT_HD std::int64_t slot_of(std::int64_t b) const {
    const std::int64_t s = slot[b];
    return s >= 0 && s < slots ? s : slots - 1;
  }
  WEFT_HD void read_row(std::int64_t b) const {
    const std::int64_t s = slot_of(b);
    base[b] = length[s];
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

void read_slots_cpu(const InputsCall &call);
void take_proposals_cpu(const ProposalsCall &call);

// Enqueue the kernel on `stream` of the current device. Return null, or CUDA's error message.
const char *read_slots_cuda(const InputsCall &call, void *stream);
const char *take_proposals_cuda(const ProposalsCall &call, void *stream);

}  // namespace weft
