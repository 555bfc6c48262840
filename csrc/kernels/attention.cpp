#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/vector_exp.h"
#include "support/kernel_threads.h"
#include "support/multiversion.h"

namespace weft {
namespace {

constexpr std::int64_t kTile = 16;                     // keys at once
constexpr std::int64_t kTogether = 4;                  // queries at once
constexpr std::int64_t kProductsForThreads = 1 << 19;  // some 100 us of work

typedef float Lanes __attribute__((vector_size(kTile * sizeof(float))));

WEFT_INLINE Lanes load(const float *from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

WEFT_INLINE void store(float *to, const Lanes &lanes) { std::memcpy(to, &lanes, sizeof lanes); }

// The queries that share one head of keys and values: softmax(q k^T) v for each over its own keys.
struct Group {
  const float *const *queries;
  const std::int64_t *lengths;  // keys that each query sees
  float *const *outs;
  std::int64_t count;
  const float *const *tokens;  // [length] each token's key; its value is `values` floats further on
  std::int64_t length, values, head_dim;
  float scale;
  float *keys;    // room for [head_dim, kTile]
  float *scores;  // room for [count, stride]
  std::int64_t stride;
};

// Scores of kQueries queries from `m` on with a tile of turned keys. Several at once keep the processor busy while one
// waits for its sum; each is summed in the same order however many there are.
template <int kQueries>
WEFT_INLINE void score_tile(const Group &g, std::int64_t m, std::int64_t first, std::int64_t head_dim) {
  Lanes even[kQueries] = {}, odd[kQueries] = {};
  for (std::int64_t d = 0; d + 1 < head_dim; d += 2) {
    const Lanes keys = load(g.keys + d * kTile), next = load(g.keys + (d + 1) * kTile);
    for (int k = 0; k < kQueries; ++k) {
      even[k] += g.queries[m + k][d] * keys;
      odd[k] += g.queries[m + k][d + 1] * next;
    }
  }
  for (int k = 0; k < kQueries; ++k) {
    if (head_dim % 2) even[k] += g.queries[m + k][head_dim - 1] * load(g.keys + (head_dim - 1) * kTile);
    store(g.scores + (m + k) * g.stride + first, (even[k] + odd[k]) * g.scale);
  }
}

// Scores of all keys, a tile of them turned so that a vector holds one dimension of each.
WEFT_INLINE void score(const Group &g, std::int64_t head_dim) {
  for (std::int64_t first = 0; first < g.length; first += kTile) {
    const std::int64_t last = g.length - 1 - first;
    for (std::int64_t n = 0; n < kTile; ++n) {
      const float *key = g.tokens[first + std::min(n, last)];
      for (std::int64_t d = 0; d < head_dim; ++d) g.keys[d * kTile + n] = key[d];
    }
    std::int64_t m = 0;
    for (; m + kTogether <= g.count; m += kTogether) score_tile<kTogether>(g, m, first, head_dim);
    for (; m < g.count; ++m) score_tile<1>(g, m, first, head_dim);
  }
}

// A row of scores becomes weights, not yet divided by their sum, which is returned.
WEFT_INLINE float exponentiate(float *scores, std::int64_t length) {
  float highest = -INFINITY, total = 0;
  for (std::int64_t n = 0; n < length; ++n) highest = std::max(highest, scores[n]);
  for (std::int64_t n = 0; n < length; ++n) {
    scores[n] = vector_exp(scores[n] - highest);
    total += scores[n];
  }
  return total;
}

// kVectors vectors of the outputs of kQueries queries from `m` on, from dimension `first` on.
template <int kQueries, int kVectors>
WEFT_INLINE void weigh(const Group &g, std::int64_t m, std::int64_t first, const float *scales) {
  Lanes sums[kQueries][kVectors] = {};
  std::int64_t n = 0, shared = g.lengths[m];
  for (int k = 1; k < kQueries; ++k) shared = std::min(shared, g.lengths[m + k]);
  const float *weights = g.scores + m * g.stride;
  for (; n < shared; ++n) {
    const float *value = g.tokens[n] + g.values + first;
    for (int v = 0; v < kVectors; ++v) {
      const Lanes values = load(value + v * kTile);
      for (int k = 0; k < kQueries; ++k) sums[k][v] += weights[k * g.stride + n] * values;
    }
  }
  for (int k = 0; k < kQueries; ++k) {
    for (std::int64_t rest = n; rest < g.lengths[m + k]; ++rest) {
      const float *value = g.tokens[rest] + g.values + first;
      for (int v = 0; v < kVectors; ++v) sums[k][v] += weights[k * g.stride + rest] * load(value + v * kTile);
    }
    for (int v = 0; v < kVectors; ++v) store(g.outs[m + k] + first + v * kTile, sums[k][v] * scales[k]);
  }
}

template <int kQueries>
WEFT_INLINE void finish(const Group &g, std::int64_t m) {
  float scales[kQueries];
  for (int k = 0; k < kQueries; ++k) scales[k] = 1 / exponentiate(g.scores + (m + k) * g.stride, g.lengths[m + k]);
  std::int64_t d = 0;
  for (; d + 2 * kTile <= g.head_dim; d += 2 * kTile) weigh<kQueries, 2>(g, m, d, scales);
  for (; d + kTile <= g.head_dim; d += kTile) weigh<kQueries, 1>(g, m, d, scales);
  for (; d < g.head_dim; ++d) {
    for (int k = 0; k < kQueries; ++k) {
      float sum = 0;
      for (std::int64_t n = 0; n < g.lengths[m + k]; ++n)
        sum += g.scores[(m + k) * g.stride + n] * g.tokens[n][g.values + d];
      g.outs[m + k][d] = sum * scales[k];
    }
  }
}

WEFT_INLINE void attend(const Group &g) {
  score(g, g.head_dim);
  std::int64_t m = 0;
  for (; m + kTogether <= g.count; m += kTogether) finish<kTogether>(g, m);
  for (; m < g.count; ++m) finish<1>(g, m);
}

using Attend = void (*)(const Group &);

void attend_plain(const Group &g) { attend(g); }

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void attend_avx2(const Group &g) { attend(g); }
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,prefer-vector-width=512"))) void attend_avx512(
    const Group &g) {
  attend(g);
}
#endif

Attend best_attend() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma"))
    return attend_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return attend_avx2;
#endif
  return attend_plain;
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

// Rows begin..end-1. Its memory is the thread's, and a row's bits do not depend on who computes it.
static void attend_rows(const AttentionCall &call, std::int64_t begin, std::int64_t end) {
  static const Attend attend_group = best_attend();
  thread_local std::vector<const float *> tokens, queries;
  thread_local std::vector<float *> outs;
  thread_local std::vector<std::int64_t> lengths;
  thread_local std::vector<float> keys, scores;
  const std::int64_t values = call.kv_heads * call.head_dim, token = 2 * values, group = call.heads / call.kv_heads;
  const std::int64_t count = call.width * group, capacity = call.table_width * call.page_size;
  queries.resize(count), outs.resize(count), lengths.resize(count), keys.resize(call.head_dim * kTile);
  for (std::int64_t b = begin; b < end; ++b) {
    const std::int64_t *positions = call.positions + b * call.width;
    const std::int64_t longest = std::min(positions[call.width - 1] + 1, capacity);
    const std::int64_t stride = (longest + kTile - 1) / kTile * kTile;
    tokens.resize(longest), scores.resize(count * stride);
    for (std::int64_t h = 0; h < call.kv_heads; ++h) {
      for (std::int64_t n = 0; n < longest; ++n) {
        const std::int64_t page = call.page_table[b * call.table_width + n / call.page_size];
        tokens[n] = call.cache + (page * call.page_size + n % call.page_size) * token + h * call.head_dim;
      }
      for (std::int64_t t = 0, m = 0; t < call.width; ++t) {
        for (std::int64_t head = h * group; head < (h + 1) * group; ++head, ++m) {
          queries[m] = call.q + b * call.q_row + t * call.q_token + head * call.head_dim;
          outs[m] = call.out + ((b * call.width + t) * call.heads + head) * call.head_dim;
          lengths[m] = std::min(positions[t] + 1, longest);
        }
      }
      attend_group({queries.data(), lengths.data(), outs.data(), count, tokens.data(), longest, values, call.head_dim,
                    call.scale, keys.data(), scores.data(), stride});
    }
  }
}

void paged_attention_cpu(const AttentionCall &call, int threads) {
  std::int64_t keys = 0;
  for (std::int64_t b = 0; b < call.rows; ++b) keys += call.positions[(b + 1) * call.width - 1] + 1;
  if (keys * call.width * call.heads * call.head_dim < kProductsForThreads) threads = 1;
  for_rows(call.rows, threads, [&](std::int64_t begin, std::int64_t end) { attend_rows(call, begin, end); });
}

}  // namespace weft
