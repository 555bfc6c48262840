// Attention of a decoder's layer on the CPU, in float32, with what comes before it: the norm of queries and keys, their
// rotation, and the writing of keys and values to the pages.
#pragma once

#include <cstdint>

namespace weft {

// `rows` texts, of which row b has new tokens starts[b]..starts[b + 1]-1 of the call's (without `starts`: `width`
// each), at positions base[b] + count[b] + offset and on. qkv [tokens, heads + 2 kv_heads, head_dim] holds their
// queries, keys and values; of each head neighbouring pairs (0, 1), (2, 3), ... are rotated by their position's row of
// `rotary` [rotary_rows, head_dim / 2, 2] (cos, sin). Keys and values go to cache [pages, page_size, 2, kv_heads,
// head_dim] at the row's page_table [rows, table_width]; to page 0 and beyond the table nothing is written. The query
// at position p sees keys 0..p, as far as the table goes; out [tokens, heads, head_dim].
//
// With a `window` above 0 it sees that many of them at most: 0..sinks-1 and the last window - sinks, its own among
// them. Pages that hold no key that the row's first new token or a later one sees are not read. 0 <= sinks < window.
//
// A row's bits depend on that row alone: sums over keys go from the first to the last, whatever is computed beside
// them.
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
