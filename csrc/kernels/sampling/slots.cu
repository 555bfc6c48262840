// Sampling by slot on CUDA: one kernel, in which a team of blocks takes all steps of a row. A step that the row's slot
// does not need returns at once.
#include <cuda_runtime.h>

#include <kernels/launch.cuh>
#include <kernels/team.cuh>

#include "kernels/columns.cuh"
#include "kernels/sampling/advance_rule.h"
#include "kernels/sampling/level.cuh"
#include "kernels/sampling/penalties.cuh"
#include "kernels/sampling/sampling.cuh"
#include "kernels/sampling/slots.h"
#include "kernels/sampling/suppress_ends.cuh"
#include "kernels/sampling/truncation.cuh"

namespace weft {
namespace {

constexpr int kThreads = 128;

struct RowMemory {
  BlockedMemory bad_words;
  unsigned has_another_than_ends;
  TruncationMemory truncation;
  SampleMemory sample;
};

__device__ PenaltyRow penalties_of(const SlotCall &call, std::int64_t i) {
  const std::int64_t from = call.extra_by_slot ? call.slot_of(i) : i / call.positions, seen = call.seen_by(i);
  PenaltyRow row(call.tables, call.slot[i / call.positions], call.length_of(i), call.temperature_of(i));
  row.extra = call.extra + from * call.row_stride, row.extra_stride = call.token_stride;
  row.num_extra = seen < call.num_extra ? seen : call.num_extra;
  return row;
}

// The end tokens that are blocked for row `i`, or null.
__device__ const std::int32_t *ends_of(const SlotCall &call, std::int64_t i) {
  return call.keeps_min_tokens ? call.tables.blocked_ends(call.slot[i / call.positions], call.position_of(i)) : nullptr;
}

// Team t samples row t.
template <class T, bool kTarget>
__global__ void __launch_bounds__(kTeamThreads, 1) sample_rows_kernel(const SlotCall call) {
  begin_chained();
  RowMemory &memory = block_memory<RowMemory>();
  const Team team;
  const std::int64_t i = blockIdx.x / team.size, vocab = call.logits.vocab, slot = call.slot[i / call.positions];
  if (call.is_padding(i)) {  // all blocks of the team return here, so none waits for another
    if (team.rank == 0 && threadIdx.x == 0) call.out[i] = -1;
    return;
  }
  const SlotRecord &record = call.record_of(i);
  T *logits = row_of<T>(call, i);
  if (call.tables.changes_logits(slot)) {
    penalize_row(penalties_of(call, i), logits, vocab, call.d2t, memory.bad_words, team);
  }
  if (const std::int32_t *ends = ends_of(call, i)) {
    suppress_row(ends, call.tables.ends_width, logits, vocab, memory.has_another_than_ends, team);
  }
  if (call.tables.levels(slot)) {
    level_row(logits, vocab, memory.truncation, team);
  }
  const float temperature = call.temperature_of(i);
  const Cuts cuts(record, temperature, call.top_p_of(i), vocab);
  const float floor = floor_of_row<T>(cuts, logits, vocab, memory.truncation, team);
  const RowDraw draw(temperature, floor, record.seed, call.position_of(i));
  const std::int64_t token = draw_token<kTarget>(draw, logits, vocab, call.d2t, memory.sample, team);
  if (team.rank == 0 && threadIdx.x == 0) {
    call.out[i] = token;
    if (call.draft_number) call.write_draft(i);
  }
  team.sync();
}

// The largest number of blocks per row with which all teams run on the device at once.
unsigned team_size(std::int64_t rows, int sms) {
  const unsigned limit = largest_team();
  unsigned size = 1;
  while (2 * size <= limit && 2 * size * rows <= sms) size *= 2;
  return size;
}

template <class T>
void launch_rows(const SlotCall &call, int sms, void *stream) {
  const auto rows = static_cast<unsigned>(call.logits.rows);
  const auto kernel = call.d2t ? sample_rows_kernel<T, true> : sample_rows_kernel<T, false>;
  launch_teams(kernel, rows, team_size(call.logits.rows, sms), stream, call);
}

// One thread per row. Only the padding slot may have several rows, and those are skipped.
__global__ void __launch_bounds__(kThreads) advance_kernel(const AdvanceCall call) {
  begin_chained();
  const std::int64_t b = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (b < call.rows) advance_row(call, b);
}

template <class T>
__global__ void __launch_bounds__(kThreads) keep_kernel(const KeepCall call) {
  begin_chained();
  const std::int64_t i = blockIdx.x;
  if (!call.keeps(i)) return;
  const T *from = static_cast<const T *>(call.from.data) + i * call.from.stride;
  T *to = static_cast<T *>(call.to) + i * call.from.vocab;
  for (std::int64_t c = threadIdx.x; c < call.from.vocab; c += kThreads) to[c] = from[c];
}

unsigned blocks_for(std::int64_t rows) { return static_cast<unsigned>((rows + kThreads - 1) / kThreads); }

}  // namespace

const char *sample_slots_cuda(const SlotCall &call, int sms, void *stream) {
  if (call.logits.rows == 0) return nullptr;
  with_element(call.logits.dtype, [&](auto element) { launch_rows<decltype(element)>(call, sms, stream); });
  return launch_error();
}

const char *advance_slots_cuda(const AdvanceCall &call, void *stream) {
  if (call.rows == 0) return nullptr;
  launch_kernel(advance_kernel, blocks_for(call.rows), kThreads, stream, call);
  return launch_error();
}

const char *keep_logits_cuda(const KeepCall &call, void *stream) {
  if (call.from.rows == 0) return nullptr;
  with_element(call.from.dtype, [&](auto element) {
    launch_kernel(keep_kernel<decltype(element)>, static_cast<unsigned>(call.from.rows), kThreads, stream, call);
  });
  return launch_error();
}

}  // namespace weft
