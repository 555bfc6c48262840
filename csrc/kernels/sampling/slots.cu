// Sampling by slot on CUDA: a kernel spells out what each row asks, and the kernels that take rows one by one follow;
// those of them that a row does not need return at once.
#include <cuda_runtime.h>

#include <kernels/launch.cuh>

#include "kernels/columns.cuh"
#include "kernels/sampling/advance_rule.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/slots.h"
#include "kernels/sampling/suppress_ends.h"
#include "kernels/sampling/truncation.h"

namespace weft {
namespace {

constexpr int kThreads = 128;

// Where the rows' values lie in the workspace; each begins at a multiple of eight bytes.
struct Rows {
  std::int64_t *slot, *length, *position, *seed, *seen, *extra;
  std::uint64_t *partial;
  float *temperature, *top_p, *min_p, *floor;
  std::int32_t *top_k;

  static std::int64_t words(std::int64_t rows, std::int64_t num_extra, std::int64_t splits) {
    return rows * (5 + num_extra + splits) + 5 * ((rows + 1) / 2);
  }

  Rows(void *workspace, std::int64_t rows, std::int64_t num_extra, std::int64_t splits) {
    auto *at = static_cast<std::int64_t *>(workspace);
    const auto take = [&](std::int64_t words) {
      std::int64_t *const here = at;
      at += words;
      return here;
    };
    slot = take(rows), length = take(rows), position = take(rows), seed = take(rows), seen = take(rows);
    extra = take(rows * num_extra);
    partial = reinterpret_cast<std::uint64_t *>(take(rows * splits));
    const std::int64_t half = (rows + 1) / 2;
    temperature = reinterpret_cast<float *>(take(half)), top_p = reinterpret_cast<float *>(take(half));
    min_p = reinterpret_cast<float *>(take(half)), floor = reinterpret_cast<float *>(take(half));
    top_k = reinterpret_cast<std::int32_t *>(take(half));
  }
};

__global__ void __launch_bounds__(kThreads) spell_kernel(const SlotCall call, const Rows r) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= call.logits.rows) return;
  const std::int64_t s = call.slot_of(i);
  r.slot[i] = call.slot[i / call.positions];
  r.length[i] = call.length_of(i);
  r.seen[i] = call.seen_by(i);
  r.position[i] = r.length[i] + r.seen[i];
  r.seed[i] = call.tables.seed[s];
  r.temperature[i] = call.temperature_of(i);
  r.top_k[i] = call.tables.top_k[s], r.top_p[i] = call.tables.top_p[s], r.min_p[i] = call.tables.min_p[s];
  for (std::int64_t e = 0; e < call.num_extra; ++e) r.extra[i * call.num_extra + e] = call.extra_of(i, e);
}

__global__ void __launch_bounds__(kThreads) pick_kernel(const SlotCall call) {
  const std::int64_t b = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (b < call.logits.rows) call.drafts[call.slot_of(b)] = call.out[b] = call.draft_of(b);
}

// A thread per row. Rows of one slot are the padding slot's: any result is fine there.
__global__ void __launch_bounds__(kThreads) advance_kernel(const AdvanceCall call) {
  const std::int64_t b = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (b < call.rows) advance_row(call, b);
}

template <class T>
__global__ void __launch_bounds__(kThreads) keep_kernel(const KeepCall call) {
  const std::int64_t i = blockIdx.x, s = call.slot[i / call.positions];
  if (s < 0 || s >= call.slots || !call.wanted[s]) return;
  const T *from = static_cast<const T *>(call.from.data) + i * call.from.stride;
  T *to = static_cast<T *>(call.to) + i * call.from.vocab;
  for (std::int64_t c = threadIdx.x; c < call.from.vocab; c += kThreads) to[c] = from[c];
}

unsigned blocks_for(std::int64_t rows) { return static_cast<unsigned>((rows + kThreads - 1) / kThreads); }

}  // namespace

std::int64_t sample_slots_workspace_cuda(const SlotCall &call, int sms) {
  const std::int64_t splits = sample_splits_cuda(call.logits.rows, call.logits.vocab, sms);
  return 8 * Rows::words(call.logits.rows, call.num_extra, splits);
}

const char *sample_slots_cuda(const SlotCall &call, int sms, void *workspace, void *stream) {
  const std::int64_t rows = call.logits.rows;
  if (rows == 0) return nullptr;
  const Rows r(workspace, rows, call.num_extra, sample_splits_cuda(rows, call.logits.vocab, sms));
  const SlotTables &tables = call.tables;
  launch_kernel(spell_kernel, blocks_for(rows), kThreads, stream, call, r);
  if (const char *error = launch_error()) return error;
  if (const char *error = penalize_cuda(
          {call.logits, tables.penalties, r.slot, r.length, r.extra, r.seen, call.num_extra, call.d2t}, sms, stream)) {
    return error;
  }
  if (call.keeps_min_tokens) {
    const SuppressCall suppress{call.logits,       tables.ends, tables.until, tables.penalties.slots,
                                tables.ends_width, r.slot,      r.position};
    if (const char *error = suppress_ends_cuda(suppress, stream)) return error;
  }
  const TruncateCall truncate{call.logits, r.temperature, r.top_k, r.top_p, r.min_p, r.floor};
  if (const char *error = truncation_floor_cuda(truncate, stream)) return error;
  const SampleCall sample{call.logits, r.temperature, r.seed, r.position, call.d2t, r.floor, call.out};
  if (const char *error = sample_cuda(sample, sms, r.partial, stream)) return error;
  if (call.draft_number) launch_kernel(pick_kernel, blocks_for(rows), kThreads, stream, call);
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
