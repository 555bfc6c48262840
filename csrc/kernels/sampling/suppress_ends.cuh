// min_tokens on CUDA, for the threads of a team on one row. The team's first block reads one column per thread at a
// time, until it finds a token other than an end token that may be drawn.
#pragma once

#include <cuda_runtime.h>

#include <kernels/team.cuh>

#include "kernels/columns.cuh"
#include "kernels/sampling/suppress_ends.h"

namespace weft {

// Blocks the `width` tokens of `ends`, unless no other token may be drawn. `has_another` is in the block's shared
// memory.
template <class T>
__device__ void suppress_row(const std::int32_t *ends, std::int64_t width, T *logits, std::int64_t vocab,
                             unsigned &has_another, const Team &team) {
  if (team.rank == 0) {
    if (threadIdx.x == 0) has_another = 0;
    for (std::int64_t first = 0; first < vocab; first += kTeamThreads) {
      __syncthreads();
      // A barrier on both sides: all threads must read the same value before one of them sets it again.
      if (has_another) break;
      __syncthreads();
      const std::int64_t c = first + threadIdx.x;
      bool is_other = c < vocab && widen(logits[c]) > -kInfinity;
      for (std::int64_t e = 0; is_other && e < width; ++e) is_other = __ldg(ends + e) != c;
      if (is_other) atomicMax(&has_another, 1u);
    }
    __syncthreads();
    if (has_another) {
      for (std::int64_t e = threadIdx.x; e < width; e += kTeamThreads) {
        if (ends[e] >= 0 && ends[e] < vocab) narrow(-kInfinity, logits[ends[e]]);
      }
    }
  }
  team.sync();
}

}  // namespace weft
