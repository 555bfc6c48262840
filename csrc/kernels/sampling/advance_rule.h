// The verification of one row, by the same code on every device.
#pragma once

#include "kernels/sampling/slots.h"

namespace weft {

WEFT_HD void advance_row(const AdvanceCall &call, std::int64_t b) {
  const SlotTables &tables = call.tables;
  const std::int64_t width = call.width, slot = call.slot[b];
  if (!tables.has(slot) || tables.is_padding(slot)) return;
  SlotRecord &record = tables.records[slot];
  const std::int64_t *drafts = call.inputs + b * width + 1, *sampled = call.sampled + b * width;
  std::int64_t *tokens = call.tokens + b * width, *row = call.verified + slot * call.verified_width;
  std::int64_t *row_host = call.verified_host + slot * call.verified_width;
  std::int64_t count = 0, num_verified = 0;
  // A missing draft, -1, equals the sample only if that is -1 too: no token could be sampled, which ends the request.
  while (count < width - 1 && drafts[count] == sampled[count]) ++count;
  while (num_verified < width - 1 && drafts[num_verified] >= 0) ++num_verified;
  if (call.is_counted) count = call.count[b];
  call.count[b] = count;
  row[0] = row_host[0] = record.is_held ? kHeldSlot : count;
  for (std::int64_t t = 0; t < width; ++t) tokens[t] = row[1 + t] = row_host[1 + t] = sampled[t];
  if (record.is_held) return;
  call.last_token[slot] = sampled[count];
  call.length[slot] = call.base[b] + count + 1;
  if (width > 1) call.num_verified[slot] = num_verified;
  for (std::int64_t k = width - 1; k < call.max_drafts; ++k) call.drafts[k * tables.slots + slot] = -1;
  if (record.changes_top_p()) {
    for (std::int64_t t = 0; t <= count; ++t) record.top_p = record.next_top_p(record.top_p, sampled[t]);
  }
  if (!record.changes_logits) return;
  std::int32_t *counts = tables.counts + slot * tables.vocab, *history = tables.history + slot * tables.history_width;
  for (std::int64_t t = 0; t <= count; ++t) {
    const std::int64_t at = call.base[b] + 1 + t, token = sampled[t];
    if (at >= 0 && at < tables.history_width) history[at] = static_cast<std::int32_t>(token);
    if (token >= 0 && token < tables.vocab) ++counts[token];
  }
}

}  // namespace weft
