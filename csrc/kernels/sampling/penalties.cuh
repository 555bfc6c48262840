// Penalties on CUDA, for the threads of a team on one row: first every column, then the last tokens of bad words and of
// n-grams that would repeat.
#pragma once

#include <cuda_runtime.h>

#include <kernels/team.cuh>

#include "kernels/columns.cuh"
#include "kernels/sampling/penalty_rule.h"

namespace weft {

struct BlockedMemory {
  unsigned end;  // of the bad-word list
  unsigned num_blocked;
  std::int64_t blocked[kTeamThreads];
};

template <class T>
__device__ __forceinline__ void change_column(const PenaltyRow &row, std::int64_t token, T *logit) {
  std::int32_t count = 0;
  bool in_text = false;
  if (row.penalizes) {
    count = __ldg(row.counts + token);
    for (std::int64_t e = 0; e < row.num_extra; ++e) count += __ldg(row.extra + e * row.extra_stride) == token;
    in_text = count > 0 || (__ldg(row.prompt + token / 32) >> (token % 32) & 1u);
  }
  const float bias = row.bias ? __ldg(row.bias + token) : 0.0f;
  if (!in_text && bias == 0) return;
  narrow(changed(widen(*logit), count, in_text, bias, row, largest(T{})), *logit);
}

template <class T>
__device__ void change_columns(const PenaltyRow &row, T *logits, std::int64_t vocab, const std::int64_t *d2t,
                               const Team &team) {
  if (!row.penalizes && !row.bias) return;
  for (std::int64_t c = team.rank * kTeamThreads + threadIdx.x; c < vocab; c += team.size * kTeamThreads) {
    const std::int64_t token = c + (d2t ? __ldg(d2t + c) : 0);
    if (token >= 0 && token < row.vocab) change_column(row, token, logits + c);
  }
}

// Sets the logits of the tokens in `memory.blocked` to -inf. All threads of the block must call it.
template <class T>
__device__ void block_listed(T *logits, std::int64_t vocab, const std::int64_t *d2t, const BlockedMemory &memory) {
  T neg_inf;
  narrow(-kInfinity, neg_inf);
  const unsigned count = memory.num_blocked;
  if (d2t) {
    for (std::int64_t c = threadIdx.x; count > 0 && c < vocab; c += kTeamThreads) {
      const std::int64_t token = c + __ldg(d2t + c);
      for (unsigned b = 0; b < count; ++b) {
        if (memory.blocked[b] == token) logits[c] = neg_inf;
      }
    }
  } else if (threadIdx.x < count && memory.blocked[threadIdx.x] < vocab) {
    logits[memory.blocked[threadIdx.x]] = neg_inf;
  }
}

// Blocks the last token of each bad word whose other tokens end the context. Runs on one block; each thread checks one
// place in the slot's bad words at a time.
template <class T>
__device__ void block_bad_words(const PenaltyRow &row, T *logits, std::int64_t vocab, const std::int64_t *d2t,
                                BlockedMemory &memory) {
  const auto width = static_cast<unsigned>(row.bad_width);
  if (threadIdx.x == 0) memory.end = width;
  __syncthreads();
  for (unsigned at = threadIdx.x; at < width; at += kTeamThreads) {
    // An empty word ends the list.
    if (row.bad_words[at] < 0 && (at == 0 || row.bad_words[at - 1] < 0)) atomicMin(&memory.end, at);
  }
  __syncthreads();
  const unsigned length = memory.end;
  for (unsigned base = 0; base < length; base += kTeamThreads) {
    if (threadIdx.x == 0) memory.num_blocked = 0;
    __syncthreads();
    const unsigned at = base + threadIdx.x;
    if (at < length && ends_bad_word(row, at) && is_complete_but_for(row, at)) {
      memory.blocked[atomicAdd(&memory.num_blocked, 1u)] = row.bad_words[at];
    }
    __syncthreads();
    block_listed(logits, vocab, d2t, memory);
    __syncthreads();
  }
}

// Blocks tokens that would repeat an n-gram. Each block of the team reads its share of the text, one n-gram per thread
// at a time.
template <class T>
__device__ void block_repeats(const PenaltyRow &row, T *logits, std::int64_t vocab, const std::int64_t *d2t,
                              BlockedMemory &memory, const Team &team) {
  const Text text(row);
  const std::int64_t count = num_ngrams(row, text);
  for (std::int64_t base = team.rank * kTeamThreads; base < count; base += team.size * kTeamThreads) {
    if (threadIdx.x == 0) memory.num_blocked = 0;
    __syncthreads();
    const std::int64_t start = base + threadIdx.x;
    const std::int64_t token = start < count ? repeating(row, text, start) : -1;
    if (token >= 0) memory.blocked[atomicAdd(&memory.num_blocked, 1u)] = token;
    __syncthreads();
    block_listed(logits, vocab, d2t, memory);
    __syncthreads();
  }
}

template <class T>
__device__ void penalize_row(const PenaltyRow &row, T *logits, std::int64_t vocab, const std::int64_t *d2t,
                             BlockedMemory &memory, const Team &team) {
  change_columns(row, logits, vocab, d2t, team);
  team.sync();
  if (team.rank == 0 && row.bad_width > 0) block_bad_words(row, logits, vocab, d2t, memory);
  if (row.ngram_size > 0) block_repeats(row, logits, vocab, d2t, memory, team);
  team.sync();
}

}  // namespace weft
