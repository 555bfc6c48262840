// Coupled sampling on CUDA, for the threads of a team on one row: each block finds its best token, and the first block
// the best of all.
//
// A best token is one integer that orders like (sum, lowest token): the sum's bits made monotone, then the token's
// complement. 0 means none. The noise of kernels/sampling/gumbel.h is computed only where its cheap bound reaches the
// best sum of the block so far. That sum depends on the order of threads, which changes the amount of work but never
// the result.
#pragma once

#include <cuda_runtime.h>

#include <kernels/team.cuh>

#include "kernels/columns.cuh"
#include "kernels/sampling/sample_rule.h"

namespace weft {

constexpr int kUnroll = 4;  // groups of 4 columns in flight per thread

struct SampleMemory {
  std::uint32_t bar;  // the block's best sum so far, ordered; 0 is none
  std::uint64_t best_of_warp[kTeamThreads / kWarp];
  std::uint64_t best;
};

__device__ __forceinline__ std::uint64_t larger(std::uint64_t a, std::uint64_t b) { return a > b ? a : b; }

__device__ __forceinline__ std::uint64_t warp_largest(std::uint64_t best) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    best = larger(best, __shfl_xor_sync(kAllLanes, best, distance));
  }
  return best;
}

__device__ __forceinline__ std::int64_t token_of(std::uint64_t best) {
  return best ? static_cast<std::int64_t>(~static_cast<std::uint32_t>(best)) : -1;
}

template <bool kTarget>
__device__ void offer_four(const RowDraw &draw, float (&x)[4], std::int64_t first, const std::int64_t *d2t,
                           volatile std::uint32_t *bar, std::uint64_t &best) {
  float top = -kInfinity;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (x[k] < draw.floor) x[k] = -kInfinity;
    top = x[k] > top ? x[k] : top;  // false for a NaN, so it is never the maximum
  }
  const std::uint32_t bar_bits = *bar;
  const float best_sum = bar_bits ? unordered(bar_bits) : -kInfinity;
  const float scale = draw.greedy ? 1.0f : draw.temperature;
  if (!(top > -kInfinity) || __fadd_rn(__fdiv_rn(top, scale), draw.greedy ? 0.0f : kLargestNoise) < best_sum) return;
  PhiloxWords four;
  if (!kTarget && !draw.greedy) four = draw.words(static_cast<std::uint32_t>(first / 4));
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (!(x[k] > -kInfinity)) continue;
    const auto token = static_cast<std::uint32_t>(first + k + (kTarget ? __ldg(d2t + first + k) : 0));
    float sum = x[k];
    if (!draw.greedy) {
      std::uint32_t word;
      if constexpr (kTarget) {
        word = draw.word(token);
      } else {
        word = four.word[k];
      }
      const float scaled = __fdiv_rn(x[k], draw.temperature);
      if (__fadd_rn(scaled, gumbel_bound(word)) < best_sum) continue;
      sum = __fadd_rn(scaled, gumbel(word));
    }
    if (!(sum > -kInfinity)) continue;
    const std::uint64_t candidate = static_cast<std::uint64_t>(ordered(sum)) << 32 | static_cast<std::uint32_t>(~token);
    if (candidate > best) {
      best = candidate;
      if (ordered(sum) > bar_bits) atomicMax(const_cast<std::uint32_t *>(bar), ordered(sum));
    }
  }
}

// Draws the row's token. Only the first thread of the team gets it. It reads the shared memory of other blocks, so
// these must not exit before the next `team.sync()`.
template <bool kTarget, class T>
__device__ std::int64_t draw_token(const RowDraw &draw, const T *row, std::int64_t vocab, const std::int64_t *d2t,
                                   SampleMemory &memory, const Team &team) {
  if (threadIdx.x == 0) memory.bar = 0;
  __syncthreads();
  const bool aligned = is_aligned_four(row);
  const std::int64_t groups = (vocab + 3) / 4, step = static_cast<std::int64_t>(team.size) * kTeamThreads;
  std::uint64_t best = 0;
  for (std::int64_t g = team.rank * kTeamThreads + threadIdx.x; g < groups; g += step * kUnroll) {
    float x[kUnroll][4];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) load_four(row, 4 * (g + u * step), vocab, aligned, x[u]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) offer_four<kTarget>(draw, x[u], 4 * (g + u * step), d2t, &memory.bar, best);
  }
  best = warp_largest(best);
  if (threadIdx.x % kWarp == 0) memory.best_of_warp[threadIdx.x / kWarp] = best;
  __syncthreads();
  if (threadIdx.x < kWarp) {
    best = warp_largest(threadIdx.x < kTeamThreads / kWarp ? memory.best_of_warp[threadIdx.x] : 0);
    if (threadIdx.x == 0) memory.best = best;
  }
  team.sync();
  if (team.rank > 0 || threadIdx.x > 0) return -1;
  for (unsigned r = 1; r < team.size; ++r) best = larger(best, *team.of(&memory.best, r));
  return token_of(best);
}

}  // namespace weft
