// Attention of a decoder layer on the CPU, in float32. The kernel also does the norm and the rotation (RoPE) of queries
// and keys, and writes keys and values to the pages of the cache, rounded to its type.
#pragma once

#include <cstdint>

#include "kernels/layer/cached.h"

namespace weft {

// Row b has the new tokens starts[b]..starts[b + 1]-1 of the call, which may be none; without `starts`, each row has
// `width` tokens. Their positions begin at base[b] + count[b] + offset. A token of `qkv` has `heads` queries and
// kv_heads keys of key_size floats each, and kv_heads values of value_size; tokens are qkv_row floats apart. In a query
// or key, `rotary_pairs` pairs of adjacent dimensions from `first_rotated` on are rotated by their position's row of
// `rotary` [rotary_rows, rotary_pairs, 2] (cos, sin). Keys and values are written to `cache` at the row's page_table
// [rows, table_width], but not to page 0 or beyond the table. The query at position p sees keys 0..p, as far as the
// table reaches. The result is out [tokens, heads, value_size].
//
// The cache has page_size tokens a page, each of token_bytes bytes: its keys, and its values from byte `values` on. If
// `values` is 0, neither the cache nor qkv has values: a value is the first value_size numbers of its key. A token in
// int8 has scales from byte `scales` on, those of its keys and then those of its values. Every query, of this call too,
// sees keys and values as they are in the cache, so a text's results do not depend on the calls that read it.
//
// With `starts`, all keys are written before any row attends, so a row may see keys of another row's new tokens. A row
// whose first new token is on page 0 only pads a graph's rows: its output is zero, or unchanged with `starts`.
//
// A score s = scale q k becomes softcap tanh(s / softcap) if `softcap` is above 0. With `sink_logits` [heads], the
// softmax of a query of head h has one more term exp(sink_logits[h]), without a value.
//
// With a `window` above 0 a query sees at most that many keys: 0..sinks-1 and the last window - sinks, including its
// own. A page is not read if none of the row's new tokens sees a key in it. 0 <= sinks < window.
//
// A norm of q_norm_heads or k_norm_heads heads takes the mean of squares over that many heads: over one, each head by
// itself with the same weights, or over all heads of a token, each with its part of the weights.
//
// With `gate` [tokens, heads, value_size], the result is multiplied by sigmoid(gate).
//
// The bits of a row's result depend on that row alone, not on the batch: sums over keys have a fixed order.
struct AttendCall {
  const float *qkv, *rotary;
  const float *q_norm, *k_norm;  // [q_norm_heads or k_norm_heads, key_size], or null: no norm
  const float *sink_logits;      // or null
  const float *gate;             // gate_row floats between tokens; or null
  char *cache;
  CachedType type;
  float *out;
  const std::int32_t *page_table;
  const std::int64_t *base, *count, *starts;  // the last two may be null
  std::int64_t rows, width, offset, heads, kv_heads, key_size, value_size, page_size, token_bytes, values, scales;
  std::int64_t table_width;
  std::int64_t rotary_rows, rotary_pairs, first_rotated, q_norm_heads, k_norm_heads, window, sinks, qkv_row, gate_row;
  float eps, scale, softcap;
  int threads;
};

void attend_cpu(const AttendCall &call);

}  // namespace weft
