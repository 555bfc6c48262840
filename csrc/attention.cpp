#include "attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "multiversion.h"

namespace weft {
namespace {

// One query over `length` keys: softmax(q k^T) v. `scores` has room for `length`.
WEFT_MULTIVERSION void attend(const float *q, const float *const *tokens, std::int64_t length, std::int64_t values,
                              std::int64_t head_dim, float scale, float *scores, float *out) {
  float highest = -INFINITY;
  for (std::int64_t n = 0; n < length; ++n) {
    const float *key = tokens[n];
    float dot = 0;
    for (std::int64_t d = 0; d < head_dim; ++d) dot += q[d] * key[d];
    scores[n] = dot * scale;
    highest = std::max(highest, scores[n]);
  }
  float total = 0;
  for (std::int64_t n = 0; n < length; ++n) {
    scores[n] = std::exp(scores[n] - highest);
    total += scores[n];
  }
  for (std::int64_t d = 0; d < head_dim; ++d) out[d] = 0;
  for (std::int64_t n = 0; n < length; ++n) {
    const float weight = scores[n] / total;
    const float *value = tokens[n] + values;
    for (std::int64_t d = 0; d < head_dim; ++d) out[d] += weight * value[d];
  }
}

}  // namespace

void kv_plan_cpu(const PlanCall &call) {
  for (std::int64_t i = 0; i < call.rows * call.width; ++i) {
    const std::int64_t position = call.positions[i], column = position / call.page_size;
    const std::int64_t page =
        column < call.table_width ? call.page_table[i / call.width * call.table_width + column] : 0;
    call.slots[i] = page * call.page_size + position % call.page_size;
    const float *turn = call.table + std::min(position, call.table_rows - 1) * call.turn;
    std::copy(turn, turn + call.turn, call.rotary + i * call.turn);
  }
}

void paged_attention_cpu(const AttentionCall &call) {
  thread_local std::vector<const float *> tokens;
  thread_local std::vector<float> scores;
  const std::int64_t values = call.kv_heads * call.head_dim, token = 2 * values, group = call.heads / call.kv_heads;
  for (std::int64_t b = 0; b < call.rows; ++b) {
    const std::int64_t *positions = call.positions + b * call.width;
    const std::int64_t capacity = call.table_width * call.page_size;
    const std::int64_t longest = std::min(positions[call.width - 1] + 1, capacity);
    tokens.resize(std::max<std::int64_t>(longest, 1));
    scores.resize(tokens.size());
    for (std::int64_t h = 0; h < call.kv_heads; ++h) {
      for (std::int64_t n = 0; n < longest; ++n) {
        const std::int64_t page = call.page_table[b * call.table_width + n / call.page_size];
        tokens[n] = call.cache + (page * call.page_size + n % call.page_size) * token + h * call.head_dim;
      }
      for (std::int64_t t = 0; t < call.width; ++t) {
        const std::int64_t length = std::min(positions[t] + 1, longest);
        for (std::int64_t head = h * group; head < (h + 1) * group; ++head)
          attend(call.q + b * call.q_row + t * call.q_token + head * call.head_dim, tokens.data(), length, values,
                 call.head_dim, call.scale, scores.data(),
                 call.out + ((b * call.width + t) * call.heads + head) * call.head_dim);
      }
    }
  }
}

}  // namespace weft
