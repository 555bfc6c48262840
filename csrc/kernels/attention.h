// Paged attention of a few queries on the CPU, in float32.
#pragma once

#include <cstdint>

namespace weft {

// Shapes as in python/weft/ops/attention.py: q [rows, width, heads, head_dim] with `q_row`
// floats between rows and `q_token` between tokens, out contiguous, cache [pages, page_size, 2, kv_heads, head_dim],
// page_table [rows, table_width], positions [rows, width] ascending by one within a row. The query at position p sees
// keys 0..p, as far as the table goes.
struct AttentionCall {
  const float *q;
  float *out;
  const float *cache;
  const std::int32_t *page_table;
  const std::int64_t *positions;
  std::int64_t rows, width, heads, kv_heads, head_dim, page_size, table_width, q_row, q_token;
  float scale;
};
// Where each token goes, [rows * width]: its page's number times page_size and its place in the page; page 0 for
// positions beyond the table. And its row of `table` [table_rows, turn], copied to `rotary`.
struct PlanCall {
  const std::int32_t *page_table;
  const std::int64_t *positions;
  const float *table;
  std::int64_t *slots;
  float *rotary;
  std::int64_t rows, width, page_size, table_width, table_rows, turn;
};
void kv_plan_cpu(const PlanCall &call);

// On `threads` threads, where there is enough to do.
void paged_attention_cpu(const AttentionCall &call, int threads);

}  // namespace weft
