#include "kernels/layer/group.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/vector_exp.h"
#include "support/instruction_set.h"

namespace weft {
namespace {

constexpr std::int64_t kQueryTile = 4;  // queries at once
// Keys and values are prefetched this many tokens ahead. The processor does not do it by itself: pages are not in
// order, and a head reads only a short part of each token.
constexpr std::int64_t kKeysAhead = 2 * kKeyTile, kValuesAhead = 16;

// A vector has the size of one register, because the compiler keeps larger ones in memory. The order of a sum of
// products does not depend on kLanes. The compiler may reorder other sums, such as that of a softmax (-ffast-math).
template <int kLanes>
struct Vector {
  typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));
  typedef int Places __attribute__((vector_size(kLanes * sizeof(int))));
};
template <int kLanes>
using Lanes = typename Vector<kLanes>::Lanes;

template <int kLanes>
WEFT_INLINE Lanes<kLanes> load(const float *from) {
  Lanes<kLanes> lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

template <class V>
WEFT_INLINE void store(float *to, const V &lanes) {
  std::memcpy(to, &lanes, sizeof lanes);
}

// Returns a + b. The compiler must not change the order of a chain of such sums (-ffast-math).
template <class T>
WEFT_INLINE T add_in_order(const T &a, const T &b) {
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
  return __builtin_assoc_barrier(a + b);
#else
  return a + b;
#endif
}

// Computes the scores of queries m .. m + kQueries - 1 with kLanes transposed keys. Several queries at once hide the
// latency of each sum, and do not change the order within a sum.
template <int kLanes, int kQueries>
WEFT_INLINE void score_keys(const Group &g, std::int64_t m, const float *keys, std::int64_t first,
                            std::int64_t key_size) {
  Lanes<kLanes> even[kQueries] = {}, odd[kQueries] = {};
  for (std::int64_t d = 0; d + 1 < key_size; d += 2) {
    const auto these = load<kLanes>(keys + d * kKeyTile), next = load<kLanes>(keys + (d + 1) * kKeyTile);
    for (int k = 0; k < kQueries; ++k) {
      even[k] += g.queries[m + k][d] * these;
      odd[k] += g.queries[m + k][d + 1] * next;
    }
  }
  for (int k = 0; k < kQueries; ++k) {
    if (key_size % 2)
      even[k] = add_in_order(even[k], g.queries[m + k][key_size - 1] * load<kLanes>(keys + (key_size - 1) * kKeyTile));
    store(g.scores + (m + k) * g.stride + first, (even[k] + odd[k]) * g.scale);
  }
}

template <int kLanes, int kQueries>
WEFT_INLINE void score_tile(const Group &g, std::int64_t m, std::int64_t first, std::int64_t key_size) {
  for (std::int64_t n = 0; n < kKeyTile; n += kLanes)
    score_keys<kLanes, kQueries>(g, m, g.keys + n, first + n, key_size);
}

// Computes the scores of all queries from `m` on, in tiles of at most kQueries.
template <int kLanes, int kQueries>
WEFT_INLINE void score_queries(const Group &g, std::int64_t m, std::int64_t first, std::int64_t key_size) {
  for (; m + kQueries <= g.count; m += kQueries) score_tile<kLanes, kQueries>(g, m, first, key_size);
  if constexpr (kQueries > 1) score_queries<kLanes, kQueries - 1>(g, m, first, key_size);
}

// Transposes kLanes x kLanes in stages, each of which swaps the off-diagonal halves of blocks.
template <int kLanes, int kBlock>
WEFT_INLINE void transpose(Lanes<kLanes> *rows) {
  if constexpr (kBlock > 0) {
    typename Vector<kLanes>::Places low, high;
    for (int k = 0; k < kLanes; ++k) {
      low[k] = k & kBlock ? kLanes + (k ^ kBlock) : k;
      high[k] = k & kBlock ? kLanes + k : k ^ kBlock;
    }
    for (int r = 0; r < kLanes; ++r) {
      if (r & kBlock) continue;
      const Lanes<kLanes> a = rows[r], b = rows[r + kBlock];
      rows[r] = __builtin_shuffle(a, b, low);
      rows[r + kBlock] = __builtin_shuffle(a, b, high);
    }
    transpose<kLanes, kBlock / 2>(rows);
  }
}

// Prefetches `count` floats of tokens first..last, from `offset` on.
WEFT_INLINE void prefetch_tokens(const Group &g, std::int64_t first, std::int64_t last, std::int64_t offset,
                                 std::int64_t count) {
  constexpr std::int64_t kLine = 64 / sizeof(float);
  for (std::int64_t n = first; n <= std::min(last, g.length - 1); ++n)
    for (std::int64_t at = 0; at < count; at += kLine) __builtin_prefetch(g.tokens[n] + offset + at);
}

// Transposes a tile of keys, so that a vector holds one dimension of several keys.
template <int kLanes>
WEFT_INLINE void transpose_keys(const Group &g, std::int64_t first, std::int64_t key_size) {
  const std::int64_t last = g.length - 1 - first;
  std::int64_t d = 0;
  for (; d + kLanes <= key_size; d += kLanes) {
    for (std::int64_t n = 0; n < kKeyTile; n += kLanes) {
      Lanes<kLanes> rows[kLanes];
      for (std::int64_t k = 0; k < kLanes; ++k) rows[k] = load<kLanes>(g.tokens[first + std::min(n + k, last)] + d);
      transpose<kLanes, kLanes / 2>(rows);
      for (std::int64_t k = 0; k < kLanes; ++k) store(g.keys + (d + k) * kKeyTile + n, rows[k]);
    }
  }
  for (; d < key_size; ++d)
    for (std::int64_t n = 0; n < kKeyTile; ++n) g.keys[d * kKeyTile + n] = g.tokens[first + std::min(n, last)][d];
}

// Computes the scores of all queries with the keys that they see, in whole tiles.
template <int kLanes>
WEFT_INLINE void score(const Group &g, std::int64_t key_size) {
  for (std::int64_t first = 0; first < g.length; first += kKeyTile) {
    prefetch_tokens(g, first + kKeysAhead, first + kKeysAhead + kKeyTile - 1, 0, key_size);
    transpose_keys<kLanes>(g, first, key_size);
    std::int64_t m = 0;
    for (; m < g.count && g.lengths[m] <= first; ++m) continue;  // queries before these keys
    score_queries<kLanes, kQueryTile>(g, m / kQueryTile * kQueryTile, first, key_size);
  }
}

// Returns `lanes` in another order: lane k becomes lane k ^ kDistance.
template <int kLanes, int kDistance>
WEFT_INLINE Lanes<kLanes> exchange(const Lanes<kLanes> &lanes) {
  typename Vector<kLanes>::Places places;
  for (int k = 0; k < kLanes; ++k) places[k] = k ^ kDistance;
  return __builtin_shuffle(lanes, places);
}

// Returns the largest of the first kCount lanes, or their sum, by halves.
template <int kLanes, int kCount>
WEFT_INLINE float largest_of(const Lanes<kLanes> &lanes) {
  if constexpr (kCount == 1) {
    return lanes[0];
  } else {
    const auto others = exchange<kLanes, kCount / 2>(lanes);
    return largest_of<kLanes, kCount / 2>(others > lanes ? others : lanes);
  }
}
template <int kLanes, int kCount>
WEFT_INLINE float sum_of(const Lanes<kLanes> &lanes) {
  if constexpr (kCount == 1) {
    return lanes[0];
  } else {
    return sum_of<kLanes, kCount / 2>(lanes + exchange<kLanes, kCount / 2>(lanes));
  }
}

// Caps a row of scores softly. Scores after `length`, up to a multiple of kKeyTile, are overwritten, because whole
// tiles are faster than single scores.
WEFT_INLINE void cap_scores(float *scores, std::int64_t length, float softcap) {
  const float scale = 1 / softcap;
  for (std::int64_t at = 0; at < length; at += kKeyTile)
    for (int k = 0; k < kKeyTile; ++k) scores[at + k] = softcap * vector_tanh(scores[at + k] * scale);
}

// Replaces a row of scores by exp(score - maximum), and returns their sum: a softmax without the division. `sink` is a
// further logit of the maximum and the sum, or null. Scores after `length` are overwritten as by `cap_scores`.
//
// The order of the sum is fixed: kLanes sums; half as many, which get kLanes / 2 scores if there are as many left; the
// sum of these; then the other scores one by one; and last the sink.
template <int kLanes>
WEFT_INLINE float exponentiate(float *scores, std::int64_t length, const float *sink) {
  const std::int64_t whole = length / kLanes * kLanes;
  const auto lowest = Lanes<kLanes>{} - INFINITY;
  auto highest = lowest;
  for (std::int64_t at = 0; at < whole; at += kLanes) {
    const auto tile = load<kLanes>(scores + at);
    highest = tile > highest ? tile : highest;
  }
  if (whole < length) {
    typename Vector<kLanes>::Places places;
    for (int k = 0; k < kLanes; ++k) places[k] = k;
    const auto tile = places < static_cast<int>(length - whole) ? load<kLanes>(scores + whole) : lowest;
    highest = tile > highest ? tile : highest;
  }
  float top = largest_of<kLanes, kLanes>(highest);
  if (sink) top = std::max(top, *sink);
  for (std::int64_t at = 0; at < length; at += kKeyTile)
    for (int k = 0; k < kKeyTile; ++k) scores[at + k] = vector_exp(scores[at + k] - top);
  constexpr int kHalf = kLanes / 2;
  Lanes<kLanes> sums = {};
  std::int64_t at = 0;
  for (; at < whole; at += kLanes) sums += load<kLanes>(scores + at);
  sums += exchange<kLanes, kHalf>(sums);
  if (at + kHalf <= length) {
    sums += load<kLanes>(scores + at);  // only the first half of the lanes is used from here on
    at += kHalf;
  }
  float sum = sum_of<kLanes, kHalf>(sums);
  for (int k = 0; k < kHalf - 1; ++k) sum = add_in_order(sum, at + k < length ? scores[at + k] : 0.0f);
  return sink ? add_in_order(sum, vector_exp(*sink - top)) : sum;
}

// Does the same for a query that does not see keys hidden..first-1; their weights become 0. Each place in a tile has
// its own sum, so the result has the same bits if some or all whole hidden tiles are left out.
WEFT_INLINE float exponentiate_around(float *scores, std::int64_t hidden, std::int64_t first, std::int64_t length,
                                      const float *sink) {
  float highest[kKeyTile], sums[kKeyTile] = {}, top = -INFINITY, total = 0;
  const auto is_seen = [=](std::int64_t n) { return (n < hidden) | ((n >= first) & (n < length)); };
  for (int k = 0; k < kKeyTile; ++k) highest[k] = -INFINITY;
  for (std::int64_t at = 0; at < length; at += kKeyTile)
    for (int k = 0; k < kKeyTile; ++k) {
      const float score = is_seen(at + k) ? scores[at + k] : -INFINITY;
      highest[k] = score > highest[k] ? score : highest[k];
    }
  for (int k = 0; k < kKeyTile; ++k) top = std::max(top, highest[k]);
  if (sink) top = std::max(top, *sink);
  for (std::int64_t at = 0; at < length; at += kKeyTile)
    for (int k = 0; k < kKeyTile; ++k) {
      const float weight = vector_exp(scores[at + k] - top);
      scores[at + k] = is_seen(at + k) ? weight : 0;
      sums[k] += scores[at + k];
    }
  for (int k = 0; k < kKeyTile; ++k) total = add_in_order(total, sums[k]);
  return sink ? add_in_order(total, vector_exp(*sink - top)) : total;
}

template <int kLanes>
WEFT_INLINE float exponentiate(const Group &g, std::int64_t m) {
  float *const scores = g.scores + m * g.stride;
  const float *const sink = g.sink_logits ? g.sink_logits + m : nullptr;
  if (g.softcap > 0) cap_scores(scores, g.lengths[m], g.softcap);
  if (g.starts && g.starts[m] >= 0) return exponentiate_around(scores, g.sinks, g.starts[m], g.lengths[m], sink);
  return exponentiate<kLanes>(scores, g.lengths[m], sink);
}

// Computes outputs, the weighted sums of values, for queries m .. m + kQueries - 1: kVectors vectors of each, from
// dimension `first` on.
template <int kLanes, int kQueries, int kVectors>
WEFT_INLINE void sum_values(const Group &g, std::int64_t m, std::int64_t first, const float *scales) {
  Lanes<kLanes> sums[kQueries][kVectors] = {};
  std::int64_t n = 0, shared = g.lengths[m];
  for (int k = 1; k < kQueries; ++k) shared = std::min(shared, g.lengths[m + k]);
  const float *weights = g.scores + m * g.stride;
  for (; n < shared; ++n) {
    prefetch_tokens(g, n + kValuesAhead, n + kValuesAhead, g.values + first, kVectors * kLanes);
    const float *value = g.tokens[n] + g.values + first;
    for (int v = 0; v < kVectors; ++v) {
      const auto values = load<kLanes>(value + v * kLanes);
      for (int k = 0; k < kQueries; ++k) sums[k][v] += weights[k * g.stride + n] * values;
    }
  }
  for (int k = 0; k < kQueries; ++k) {
    for (std::int64_t rest = n; rest < g.lengths[m + k]; ++rest) {
      const float *value = g.tokens[rest] + g.values + first;
      for (int v = 0; v < kVectors; ++v) sums[k][v] += weights[k * g.stride + rest] * load<kLanes>(value + v * kLanes);
    }
    for (int v = 0; v < kVectors; ++v) store(g.outs[m + k] + first + v * kLanes, sums[k][v] * scales[k]);
  }
}

// Computes the last dimensions, fewer than kLanes from `first` on, by a vector that overlaps the one before it, or by
// smaller vectors if there is none.
template <int kLanes, int kQueries>
WEFT_INLINE void sum_last_values(const Group &g, std::int64_t m, std::int64_t first, const float *scales) {
  if (g.value_size >= kLanes) {
    for (; first < g.value_size; first += kLanes)
      sum_values<kLanes, kQueries, 1>(g, m, std::min(first, g.value_size - kLanes), scales);
  } else if constexpr (kLanes > 1) {
    sum_last_values<kLanes / 2, kQueries>(g, m, first, scales);
  }
}

template <int kLanes, int kQueries>
WEFT_INLINE void attend_tile(const Group &g, std::int64_t m) {
  float scales[kQueries];
  for (int k = 0; k < kQueries; ++k) scales[k] = 1 / exponentiate<kLanes>(g, m + k);
  std::int64_t d = 0;
  for (; d + 2 * kLanes <= g.value_size; d += 2 * kLanes) sum_values<kLanes, kQueries, 2>(g, m, d, scales);
  for (; d + kLanes <= g.value_size; d += kLanes) sum_values<kLanes, kQueries, 1>(g, m, d, scales);
  if (d < g.value_size) sum_last_values<kLanes, kQueries>(g, m, d, scales);
}

// Computes the outputs of all queries from `m` on, in tiles of at most kQueries.
template <int kLanes, int kQueries>
WEFT_INLINE void attend_queries(const Group &g, std::int64_t m) {
  for (; m + kQueries <= g.count; m += kQueries) attend_tile<kLanes, kQueries>(g, m);
  if constexpr (kQueries > 1) attend_queries<kLanes, kQueries - 1>(g, m);
}

template <int kLanes>
WEFT_INLINE void attend(const Group &g) {
  score<kLanes>(g, g.key_size);
  attend_queries<kLanes, kQueryTile>(g, 0);
}

using Attend = void (*)(const Group &);

void attend_plain(const Group &g) { attend<4>(g); }

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void attend_avx2(const Group &g) { attend<8>(g); }
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,prefer-vector-width=512"))) void attend_avx512(
    const Group &g) {
  attend<16>(g);
}
#endif

Attend best_attend() {
#if defined(__x86_64__)
  if (instruction_set() == InstructionSet::kAvx512) return attend_avx512;
  if (instruction_set() == InstructionSet::kAvx2) return attend_avx2;
#endif
  return attend_plain;
}

}  // namespace

void attend_group(const Group &group) {
  static const Attend best = best_attend();
  best(group);
}

}  // namespace weft
