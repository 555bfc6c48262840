#include "kernels/layer/recur.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/squares.h"
#include "kernels/vector_exp.h"
#include "support/instruction_set.h"
#include "support/kernel_threads.h"

namespace weft {
namespace {

// The number of blocks of a head.
WEFT_INLINE std::int64_t blocks_of(const RecurrentCache &cache) {
  return (cache.value_size + kStateColumns - 1) / kStateColumns;
}

#define WEFT_INNER_LOOPS "kernels/layer/state_block.h"
#include "kernels/layer/each_target.h"

struct Variant {
  std::int64_t together;  // blocks
  void (*recur)(const RecurCall &, const Chain &, const ChainRow *, std::int64_t block, std::int64_t count, float *);
  void (*settle)(const SettleCall &, std::int64_t entry, std::int64_t block);
};

Variant best_variant() {
#if defined(WEFT_HAS_TARGETS)
  if (instruction_set() == InstructionSet::kAvx512)
    return {avx512::kMostTogether, avx512::recur_any, avx512::settle_any};
  if (instruction_set() == InstructionSet::kAvx2) return {avx2::kMostTogether, avx2::recur_any, avx2::settle_any};
#endif
  return {plain::kMostTogether, plain::recur_any, plain::settle_any};
}

const Variant &variant() {
  static const Variant best = best_variant();
  return best;
}

float *thread_scratch(std::int64_t floats) {
  static thread_local std::vector<float> scratch;
  constexpr std::size_t kLine = 16;  // floats of a cache line
  scratch.resize(std::max(scratch.size(), static_cast<std::size_t>(floats) + kLine));
  const auto address = reinterpret_cast<std::uintptr_t>(scratch.data());
  return scratch.data() + (64 - address % 64) % 64 / sizeof(float);
}

// Keeps the decays and keys of the drafts of a speculative row. They serve several blocks, which still read the old
// ones, so all blocks must be done.
void keep_drafts(const RecurCall &call, const Chain &chain, const ChainRow &row) {
  const RecurrentCache &cache = call.cache;
  const std::int64_t keys = cache.key_heads * cache.key_size;
  const std::int64_t of_head[] = {1, cache.key_size, cache.value_size};
  const std::int64_t decays = cache.heads * of_head[static_cast<int>(call.kind)];
  for (std::int64_t t = 1; t < row.count && t <= cache.drafts; ++t) {
    const std::int64_t at = chain.slot * cache.slot_row + (t - 1) * cache.draft_row, token = row.first + t;
    std::copy_n(call.decay + token * call.decay_row, decays, cache.decay + at);
    std::copy_n(call.k + token * call.k_row, keys, cache.key + at);
  }
}

// log(1 + exp(x)) by a series of atanh.
WEFT_INLINE float softplus(float x) {
  const float power = vector_exp(-std::fabs(x)), s = power / (2 + power), square = s * s;
  float p = 1.0f / 13;
  p = p * square + 1.0f / 11;
  p = p * square + 1.0f / 9;
  p = p * square + 1.0f / 7;
  p = p * square + 1.0f / 5;
  p = p * square + 1.0f / 3;
  return std::max(x, 0.0f) + 2 * (s + s * square * p);
}

// out = scale * x / sqrt(sum(x^2) + 1e-6).
WEFT_INLINE void l2_norm(const float *x, float *out, std::int64_t size, float scale) {
  const float factor = scale / std::sqrt(sum_of_squares(x, size) + 1e-6f);
  for (std::int64_t i = 0; i < size; ++i) out[i] = x[i] * factor;
}

// The inputs of a call's tokens after the gates.
struct Gated {
  std::vector<float> q, k, decay, beta;
};

WEFT_MULTIVERSION void apply_gates(const RecurCall &call, std::int64_t begin, std::int64_t end, Gated &gated) {
  const std::int64_t heads = call.cache.heads, key_heads = call.cache.key_heads, size = call.cache.key_size;
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  for (std::int64_t t = begin; t < end; ++t) {
    const float *of_decay = call.decay + t * call.decay_row, *of_beta = call.beta + t * call.beta_row;
    float *decay = gated.decay.data() + t * heads, *beta = gated.beta.data() + t * heads;
    for (std::int64_t h = 0; h < heads; ++h)
      decay[h] = vector_exp(-call.gate_rates[h] * softplus(of_decay[h] + call.gate_bias[h]));
    for (std::int64_t h = 0; h < heads; ++h) beta[h] = sigmoid(of_beta[h]);
    for (std::int64_t h = 0; h < key_heads; ++h) {
      const std::int64_t to = (t * key_heads + h) * size;
      l2_norm(call.q + t * call.q_row + h * size, gated.q.data() + to, size, scale);
      l2_norm(call.k + t * call.k_row + h * size, gated.k.data() + to, size, 1);
    }
  }
}

// Returns the call with its inputs after the gates, which are in memory of this thread.
RecurCall after_gates(const RecurCall &call, const Chains &all) {
  static thread_local Gated callers_gated;
  Gated &gated = callers_gated;  // a lambda must not name a thread_local: it would be the worker's
  const std::int64_t heads = call.cache.heads, keys = call.cache.key_heads * call.cache.key_size;
  std::int64_t tokens = 0;
  for (const ChainRow &row : all.rows) tokens = std::max(tokens, row.first + row.count);
  gated.q.resize(static_cast<std::size_t>(tokens * keys)), gated.k.resize(gated.q.size());
  gated.decay.resize(static_cast<std::size_t>(tokens * heads)), gated.beta.resize(gated.decay.size());
  for_rows(tokens, call.threads, 6 * keys + 40 * heads,
           [&](std::int64_t begin, std::int64_t end) { apply_gates(call, begin, end, gated); });
  RecurCall after = call;
  after.q = gated.q.data(), after.k = gated.k.data(), after.decay = gated.decay.data(), after.beta = gated.beta.data();
  after.q_row = after.k_row = keys, after.decay_row = after.beta_row = heads, after.gate_rates = nullptr;
  return after;
}

void recur_chains(const RecurCall &call, const Chains &all) {
  const RecurrentCache &cache = call.cache;
  const auto num_chains = static_cast<std::int64_t>(all.chains.size());
  if (num_chains == 0) return;
  const Variant &chosen = variant();
  const std::int64_t together = chosen.together;
  const std::int64_t blocks = blocks_of(cache), groups = (blocks + together - 1) / together;
  const std::int64_t size = cache.key_size * kStateColumns, units = cache.heads * groups;
  const std::int64_t cost = together * size * (8 + 2 * all.tokens / num_chains);
  for_rows(num_chains * units, call.threads, cost, [&](std::int64_t begin, std::int64_t end) {
    float *scratch = thread_scratch(together * size + cache.key_size);
    for (std::int64_t u = begin; u < end; ++u) {
      const std::int64_t head = u % units / groups, block = u % groups * together;
      chosen.recur(call, all.chains[static_cast<std::size_t>(u / units)], all.rows.data(), head * blocks + block,
                   std::min(together, blocks - block), scratch);
    }
  });
  for (const Chain &chain : all.chains) {
    const ChainRow &last = all.rows[static_cast<std::size_t>(chain.end - 1)];
    if (last.is_speculative) keep_drafts(call, chain, last);
  }
}

}  // namespace

void recur_cpu(const RecurCall &call) {
  clear_padding(call.rows, call.out, call.cache.heads * call.cache.value_size);
  const Chains &all = chains_of(call.rows, call.cache.drafts);
  recur_chains(call.gate_rates ? after_gates(call, all) : call, all);
}

void settle_recurrence_cpu(const SettleCall &call) {
  const std::int64_t blocks = call.cache.heads * blocks_of(call.cache), size = call.cache.key_size * kStateColumns;
  const auto settle = variant().settle;
  for_rows(call.entries * blocks, call.threads, size * 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t u = begin; u < end; ++u) {
      const std::int64_t slot = call.slots[u / blocks];
      if (slot >= 0 && slot < call.num_slots - 1 && call.targets[u / blocks] >= 0) settle(call, u / blocks, u % blocks);
    }
  });
}

}  // namespace weft
