// Levelling on CUDA, for the threads of a team on one row.
#pragma once

#include <cuda_runtime.h>

#include <kernels/team.cuh>

#include "kernels/sampling/truncation.cuh"

namespace weft {

template <class T>
__device__ void level_row(T *logits, std::int64_t vocab, TruncationMemory &memory, const Team &team) {
  const std::uint32_t key = TruncatedRow<T>{logits, vocab, team, memory}.top_key();
  const float top = key > 0 ? unordered(key) : -kInfinity;
  team.sync();  // wait until every block has read the others' maxima and its logits, before any logit changes
  if (is_finite(top)) {
    const std::int64_t step = static_cast<std::int64_t>(team.size) * kTeamThreads;
    for (std::int64_t c = team.rank * kTeamThreads + threadIdx.x; c < vocab; c += step) {
      const float value = widen(logits[c]);
      if (is_finite(value)) narrow(clamped(__fadd_rn(value, -top), largest(T{})), logits[c]);
    }
  }
  team.sync();
}

}  // namespace weft
