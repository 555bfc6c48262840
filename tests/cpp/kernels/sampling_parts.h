// The device functions of sampling by slot on CUDA, each wrapped in its own kernel. Team t works on row t.
#pragma once

#include <kernels/team.cuh>

#include "kernels/sampling/level.cuh"
#include "kernels/sampling/penalties.cuh"
#include "kernels/sampling/sampling.cuh"
#include "kernels/sampling/suppress_ends.cuh"
#include "kernels/sampling/truncation.cuh"

namespace weft {

template <class T>
void penalize_kernel(const PenalizeCall call) {
  auto &memory = block_memory<BlockedMemory>();
  const Team team;
  const std::int64_t i = blockIdx.x / team.size;
  if (!call.tables.changes_logits(call.slot[i])) return;
  penalize_row(PenaltyRow(call, i), row_of<T>(call, i), call.logits.vocab, call.d2t, memory, team);
}

template <class T>
void level_kernel(const LevelCall call) {
  auto &memory = block_memory<TruncationMemory>();
  const Team team;
  const std::int64_t i = blockIdx.x / team.size;
  if (call.tables.levels(call.slot[i])) level_row(row_of<T>(call, i), call.logits.vocab, memory, team);
}

template <class T>
void suppress_kernel(const SuppressCall call) {
  auto &has_another = block_memory<unsigned>();
  const Team team;
  const std::int64_t i = blockIdx.x / team.size;
  if (const std::int32_t *ends = call.ends_of(i)) {
    suppress_row(ends, call.tables.ends_width, row_of<T>(call, i), call.logits.vocab, has_another, team);
  }
}

template <class T>
void truncate_kernel(const TruncateCall call) {
  auto &memory = block_memory<TruncationMemory>();
  const Team team;
  const std::int64_t i = blockIdx.x / team.size;
  const float floor = floor_of_row<T>(call.cuts[i], row_of<T>(call, i), call.logits.vocab, memory, team);
  if (team.rank == team.size - 1 && threadIdx.x == kTeamThreads - 1) call.floor[i] = floor;  // all threads have it
}

template <class T, bool kTarget>
void sample_kernel(const SampleCall call) {
  auto &memory = block_memory<SampleMemory>();
  const Team team;
  const std::int64_t i = blockIdx.x / team.size;
  const T *row = row_of<T>(call, i);
  const std::int64_t token = draw_token<kTarget>(call.draws[i], row, call.logits.vocab, call.d2t, memory, team);
  if (team.rank == 0 && threadIdx.x == 0) call.out[i] = token;
  team.sync();
}

template <class Call, class Launch>
void by_rows(const Call &call, unsigned team, Launch &&kernel_of) {
  with_element(call.logits.dtype, [&](auto element) {
    launch_teams(kernel_of(element), static_cast<unsigned>(call.logits.rows), team, nullptr, call);
  });
}

inline void penalize_on_cuda(const PenalizeCall &call, unsigned team) {
  by_rows(call, team, [](auto element) { return penalize_kernel<decltype(element)>; });
}
inline void level_on_cuda(const LevelCall &call, unsigned team) {
  by_rows(call, team, [](auto element) { return level_kernel<decltype(element)>; });
}
inline void suppress_ends_on_cuda(const SuppressCall &call, unsigned team) {
  by_rows(call, team, [](auto element) { return suppress_kernel<decltype(element)>; });
}
inline void truncation_floor_on_cuda(const TruncateCall &call, unsigned team) {
  by_rows(call, team, [](auto element) { return truncate_kernel<decltype(element)>; });
}
inline void sample_on_cuda(const SampleCall &call, unsigned team) {
  by_rows(call, team, [&](auto element) {
    return call.d2t ? sample_kernel<decltype(element), true> : sample_kernel<decltype(element), false>;
  });
}

}  // namespace weft
