// Attention of a decoder layer on the CPU, in float32. The kernel also does the norm and the rotation (RoPE) of queries
// and keys, and writes keys and values to the pages of the cache.
#pragma once

#include <cstdint>

namespace weft {

// Row b has the new tokens starts[b]..starts[b + 1]-1 of the call, which may be none; without `starts`, each row has
// `width` tokens. Their positions begin at base[b] + count[b] + offset. qkv [tokens, heads + 2 kv_heads, head_dim]
// holds their queries, keys and values. The pairs of dimensions (0, 1), (2, 3), ... of a head are rotated by their
// position's row of `rotary` [rotary_rows, head_dim / 2, 2] (cos, sin). Keys and values are written to cache [pages,
// page_size, 2, kv_heads, head_dim] at the row's page_table [rows, table_width], but not to page 0 or beyond the table.
// The query at position p sees keys 0..p, as far as the table reaches. The result is out [tokens, heads, head_dim].
// With `starts`, all keys are written before any row attends, so a row may see keys of another row's new tokens. A row
// whose first new token is on page 0 only pads a graph's rows: its output is zero, or unchanged with `starts`.
//
// With a `window` above 0 a query sees at most that many keys: 0..sinks-1 and the last window - sinks, including its
// own. A page is not read if none of the row's new tokens sees a key in it. 0 <= sinks < window.
//
// The bits of a row's result depend on that row alone, not on the batch: sums over keys have a fixed order.
struct AttendCall {
  const float *qkv, *rotary;
  const float *q_norm, *k_norm;  // [head_dim] each, or null: no norm
  float *cache, *out;
  const std::int32_t *page_table;
  const std::int64_t *base, *count, *starts;  // the last two may be null
  std::int64_t rows, width, offset, heads, kv_heads, head_dim, page_size, table_width, rotary_rows, window, sinks;
  float eps, scale;
  int threads;
};

void attend_cpu(const AttendCall &call);

}  // namespace weft
