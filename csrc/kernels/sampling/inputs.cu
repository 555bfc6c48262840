// The inputs of an iteration, on CUDA.
#include <cuda_runtime.h>

#include <kernels/launch.cuh>

#include "kernels/sampling/inputs.h"

namespace weft {
namespace {

constexpr int kThreads = 128;

// One block per record.
__global__ void __launch_bounds__(kThreads) open_kernel(const OpenCall call) {
  begin_chained();
  call.open_row(blockIdx.x, threadIdx.x, kThreads);
}

// One block per row. Some later kernels (attention) read this kernel's output, and earlier kernels' output, without
// waiting. So this kernel lets the next one start only after its own writes are visible.
__global__ void __launch_bounds__(kThreads) read_kernel(const InputsCall call) {
  wait_for_earlier();
  const std::int64_t b = blockIdx.x;
  if (threadIdx.x == 0) call.read_row(b);
  const std::int32_t *from = call.page_table + call.slot_of(b) * call.table_width;
  for (std::int64_t p = threadIdx.x; p < call.table_width; p += kThreads)
    call.pages[b * call.table_width + p] = from[p];
  __threadfence();
}

__global__ void __launch_bounds__(kThreads) proposals_kernel(const ProposalsCall call) {
  begin_chained();
  const std::int64_t b = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (b < call.rows) call.take_row(b);
}

}  // namespace

const char *open_slots_cuda(const OpenCall &call, void *stream) {
  if (call.rows == 0) return nullptr;
  launch_kernel(open_kernel, static_cast<unsigned>(call.rows), kThreads, stream, call);
  return launch_error();
}

const char *read_slots_cuda(const InputsCall &call, void *stream) {
  if (call.rows == 0) return nullptr;
  launch_kernel(read_kernel, static_cast<unsigned>(call.rows), kThreads, stream, call);
  return launch_error();
}

const char *take_proposals_cuda(const ProposalsCall &call, void *stream) {
  if (call.rows == 0) return nullptr;
  launch_kernel(proposals_kernel, static_cast<unsigned>((call.rows + kThreads - 1) / kThreads), kThreads, stream, call);
  return launch_error();
}

}  // namespace weft
