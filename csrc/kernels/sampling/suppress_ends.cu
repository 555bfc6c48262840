// min_tokens on CUDA: a block per row, which looks at kThreads columns at a time until one of them is left to be drawn.
#include <cuda_runtime.h>

#include <kernels/launch.cuh>

#include "kernels/columns.cuh"
#include "kernels/sampling/suppress_ends.h"

namespace weft {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) suppress_kernel(const SuppressCall call) {
  __shared__ unsigned found;
  const std::int64_t i = blockIdx.x, vocab = call.logits.vocab;
  const std::int32_t *ends = call.ends_of(i);
  if (!ends) return;
  T *logits = row_of<T>(call, i);
  if (threadIdx.x == 0) found = 0;
  for (std::int64_t first = 0; first < vocab; first += kThreads) {
    __syncthreads();
    if (found) break;
    __syncthreads();
    const std::int64_t c = first + threadIdx.x;
    bool is_other = c < vocab && widen(logits[c]) > -kInfinity;
    for (std::int64_t e = 0; is_other && e < call.width; ++e) is_other = __ldg(ends + e) != c;
    if (is_other) atomicMax(&found, 1u);
  }
  __syncthreads();
  if (!found) return;
  for (std::int64_t e = threadIdx.x; e < call.width; e += kThreads) {
    if (ends[e] >= 0 && ends[e] < vocab) narrow(-kInfinity, logits[ends[e]]);
  }
}

}  // namespace

const char *suppress_ends_cuda(const SuppressCall &call, void *stream) {
  if (call.logits.rows == 0) return nullptr;
  const auto blocks = static_cast<unsigned>(call.logits.rows);
  with_element(call.logits.dtype, [&](auto element) {
    launch_kernel(suppress_kernel<decltype(element)>, blocks, kThreads, stream, call);
  });
  return launch_error();
}

}  // namespace weft
