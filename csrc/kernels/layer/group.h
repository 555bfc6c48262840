// The queries that share one head of keys and values: softmax(q k^T) v for each over its own keys. Internal to this
// folder.
#pragma once

#include <cstdint>

namespace weft {

constexpr std::int64_t kKeyTile = 16;  // keys at once

struct Group {
  const float *const *queries;
  const std::int64_t *lengths;  // keys that each query sees, but for those from `sinks` to its place in `starts`
  const std::int64_t *starts;   // null: each query sees all before its length
  std::int64_t sinks;
  float *const *outs;
  std::int64_t count;
  const float *const *tokens;  // [length] each token's key; its value is `values` floats further on
  std::int64_t length, values, head_dim;
  float scale;
  float *keys;    // room for [head_dim, kKeyTile]
  float *scores;  // room for [count, stride]
  std::int64_t stride;
};

void attend_group(const Group &group);

}  // namespace weft
