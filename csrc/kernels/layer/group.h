// Attention of the queries that share one head of keys and values (grouped-query attention): softmax(q k^T) v for each
// query over its own keys. Internal to this folder.
#pragma once

#include <cstdint>

namespace weft {

constexpr std::int64_t kKeyTile = 16;  // keys that are scored at once

struct Group {
  const float *const *queries;
  const std::int64_t *lengths;  // [count] each query sees keys 0..length-1, except keys sinks..start-1
  const std::int64_t *starts;   // [count], or null: each query sees all keys below its length
  std::int64_t sinks;
  float *const *outs;
  std::int64_t count;
  const float *const *tokens;  // [length] the key of each token; its value lies `values` floats after it
  std::int64_t length, values, head_dim;
  float scale;
  float *keys;    // scratch for [head_dim, kKeyTile]
  float *scores;  // scratch for [count, stride]
  std::int64_t stride;
};

void attend_group(const Group &group);

}  // namespace weft
