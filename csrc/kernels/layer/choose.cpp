#include "kernels/layer/choose.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/floats.h"
#include "kernels/layer/live.h"
#include "kernels/vector_exp.h"
#include "support/instruction_set.h"
#include "support/kernel_threads.h"

namespace weft {
namespace {

constexpr std::int64_t kLanes = 16;  // parts of a sum of scores

// The `capacity` largest keys so far and their indices, in falling order. Of equal keys the earlier comes first.
struct Largest {
  std::int64_t *index;
  float *keys;
  std::int64_t capacity, count;

  WEFT_INLINE void add(std::int64_t i, float key) {
    if (std::isnan(key)) key = kInfinity;
    if (count == capacity && !(key > keys[capacity - 1])) return;
    std::int64_t at = count < capacity ? count++ : capacity - 1;
    for (; at > 0 && key > keys[at - 1]; --at) index[at] = index[at - 1], keys[at] = keys[at - 1];
    index[at] = i, keys[at] = key;
  }
};

// Working memory of a thread.
struct Scratch {
  std::vector<float> scores, ranks, keys;
  std::vector<std::int64_t> groups;

  void resize(const Choice &c) {
    const auto size = [](std::int64_t count) { return static_cast<std::size_t>(count); };
    scores.resize(size((c.experts + kLanes - 1) / kLanes * kLanes)), ranks.resize(size(c.experts));
    keys.resize(size(std::max(c.chosen, c.top_groups))), groups.resize(size(c.top_groups));
  }
};

// exp(x - largest) / sum, in place.
WEFT_INLINE void softmax(float *x, std::int64_t count) {
  float largest = x[0], sums[kLanes] = {};
  for (std::int64_t i = 1; i < count; ++i) largest = std::max(largest, x[i]);
  const std::int64_t padded = (count + kLanes - 1) / kLanes * kLanes;
  for (std::int64_t i = 0; i < count; ++i) x[i] = vector_exp(x[i] - largest);
  std::fill(x + count, x + padded, 0.0f);
  for (std::int64_t i = 0; i < padded; i += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane];
  float sum = 0;
  for (const float part : sums) sum += part;
  for (std::int64_t i = 0; i < count; ++i) x[i] /= sum;
}

// Writes the indices of the chosen experts. `keys` is scratch memory.
WEFT_INLINE void choose_experts(const Choice &c, const float *ranks, std::int64_t *index, float *keys,
                                std::int64_t *groups) {
  const std::int64_t size = c.experts / c.groups;
  if (c.top_groups < c.groups) {
    Largest best{groups, keys, c.top_groups, 0};
    for (std::int64_t g = 0; g < c.groups; ++g) {
      float first = -kInfinity, second = -kInfinity;
      for (std::int64_t e = g * size; e < (g + 1) * size; ++e) {
        const float rank = std::isnan(ranks[e]) ? kInfinity : ranks[e];
        second = std::max(second, std::min(first, rank)), first = std::max(first, rank);
      }
      best.add(g, c.group_top == 1 ? first : first + second);
    }
    std::sort(groups, groups + c.top_groups);
  } else {
    for (std::int64_t g = 0; g < c.groups; ++g) groups[g] = g;
  }
  Largest best{index, keys, c.chosen, 0};
  for (std::int64_t n = 0; n < c.top_groups; ++n)
    for (std::int64_t e = groups[n] * size; e < (groups[n] + 1) * size; ++e) best.add(e, ranks[e]);
}

WEFT_MULTIVERSION void choose_rows(const ChooseCall &call, std::int64_t begin, std::int64_t end, Scratch &s) {
  const Choice &c = call.choice;
  float *const scores = s.scores.data(), *const ranks = s.ranks.data();
  for (std::int64_t r = begin; r < end; ++r) {
    const float *logits = call.logits + r * call.logits_row;
    std::int64_t *index = call.index + r * (c.chosen + c.shared);
    float *weights = call.weights + r * (c.chosen + c.shared);
    std::copy_n(logits, c.experts, scores);
    if (c.scores == Scores::kSoftmax) softmax(scores, c.experts);
    if (c.scores == Scores::kSigmoid)
      for (std::int64_t e = 0; e < c.experts; ++e) scores[e] = sigmoid(scores[e]);
    for (std::int64_t e = 0; e < c.experts; ++e) ranks[e] = call.bias ? scores[e] + call.bias[e] : scores[e];
    choose_experts(c, ranks, index, s.keys.data(), s.groups.data());
    for (std::int64_t j = 0; j < c.chosen; ++j) weights[j] = scores[index[j]];
    float divisor = 1;
    if (c.scores == Scores::kTopSoftmax) {
      float largest = weights[0];  // not the first, if there is a bias
      for (std::int64_t j = 1; j < c.chosen; ++j) largest = std::max(largest, weights[j]);
      for (std::int64_t j = 0; j < c.chosen; ++j) weights[j] = vector_exp(weights[j] - largest);
    }
    if (c.renormalizes || c.scores == Scores::kTopSoftmax) {
      divisor = 1e-20f;  // as transformers; scores may all be 0
      for (std::int64_t j = 0; j < c.chosen; ++j) divisor += weights[j];
    }
    for (std::int64_t j = 0; j < c.chosen; ++j) weights[j] = weights[j] / divisor * c.scale;
    const float gate = c.shared_gate ? sigmoid(logits[c.experts]) : 1;
    for (std::int64_t j = 0; j < c.shared; ++j) index[c.chosen + j] = c.experts + j, weights[c.chosen + j] = gate;
  }
}

}  // namespace

void choose_cpu(const ChooseCall &call) {
  const std::int64_t cost = 32 * call.choice.experts + (call.norm.out ? 4 * call.norm.width : 0);
  for_rows(live_rows(call.rows, call.live), call.threads, cost, [&](std::int64_t begin, std::int64_t end) {
    static thread_local Scratch scratch;
    scratch.resize(call.choice);
    choose_rows(call, begin, end, scratch);
    if (!call.norm.out) return;
    NormCall part = call.norm;
    part.x += begin * part.x_row, part.out += begin * part.out_row, part.rows = end - begin;
    rms_norm_cpu(part);
  });
}

}  // namespace weft
