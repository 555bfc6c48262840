#include "kernels/layer/recur.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/vector_exp.h"
#include "support/instruction_set.h"
#include "support/kernel_threads.h"

namespace weft {
namespace {

// The number of blocks of a head.
WEFT_INLINE std::int64_t blocks_of(const RecurrentCache &cache) {
  return (cache.value_size + kStateColumns - 1) / kStateColumns;
}

namespace plain {
#define WEFT_TARGET 0
#include "kernels/layer/state_block.h"
#undef WEFT_TARGET
}  // namespace plain

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WEFT_HAS_TARGETS 1
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace avx2 {
#define WEFT_TARGET 256
#include "kernels/layer/state_block.h"
#undef WEFT_TARGET
}  // namespace avx2
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,f16c,prefer-vector-width=512")
namespace avx512 {
#define WEFT_TARGET 512
#include "kernels/layer/state_block.h"
#undef WEFT_TARGET
}  // namespace avx512
#pragma GCC pop_options
#endif

struct Variant {
  std::int64_t together;  // blocks
  void (*recur)(const RecurCall &, const Chain &, const ChainRow *, std::int64_t block, std::int64_t count, float *);
  void (*settle)(const SettleCall &, std::int64_t entry, std::int64_t block);
};

Variant best_variant() {
#if WEFT_HAS_TARGETS
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

}  // namespace

void recur_cpu(const RecurCall &call) {
  const RecurrentCache &cache = call.cache;
  clear_padding(call.rows, call.out, cache.heads * cache.value_size);
  const Chains &all = chains_of(call.rows, cache.drafts);
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
