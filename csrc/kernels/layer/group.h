// Attention of the queries that share one head of keys and values (grouped-query attention): softmax(q k^T) v for each
// query over its own keys. Internal to this folder.
#pragma once

#include <cstdint>

#include "kernels/layer/cached.h"

namespace weft {

constexpr std::int64_t kKeyTile = 16;  // keys that are scored at once

struct Group {
  const float *const *queries;
  const std::int64_t *lengths;  // [count] each query sees keys 0..length-1, except keys sinks..start-1
  const std::int64_t *starts;   // [count], -1 for a query that sees all keys below its length; or null: all do
  std::int64_t sinks;
  float *const *outs;
  std::int64_t count;
  // [length] the key of each token; `values` bytes after it is its value, and the scales of both after `key_scale` and
  // `value_scale` bytes
  const char *const *tokens;
  CachedType type;
  std::int64_t length, values, key_scale, value_scale, key_size, value_size;
  float scale, softcap;      // softcap is 0 for none
  const float *sink_logits;  // [count] a further logit of each query, without a value; or null
  float *keys;               // scratch for [key_size, kKeyTile]
  float *scores;             // scratch for [count, stride]
  std::int64_t stride;
};

void attend_group(const Group &group);

}  // namespace weft
