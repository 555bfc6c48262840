// Penalties on CUDA: one kernel changes columns, several blocks to a row; a second one, a block per row, then blocks
// the bad words' last tokens.
#include <cuda_runtime.h>

#include <kernels/launch.cuh>

#include "kernels/columns.cuh"
#include "kernels/sampling/penalties.h"
#include "kernels/sampling/penalty_rule.h"

namespace weft {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;       // 2048 threads
constexpr unsigned kMaxRows = 65535;  // of a grid's y

template <class T>
__device__ __forceinline__ void change_column(const PenaltyRow &row, std::int64_t token, T *logit) {
  std::int32_t count = 0;
  bool repeated = false;
  if (row.penalizes) {
    count = __ldg(row.counts + token);
    for (std::int64_t e = 0; e < row.num_extra; ++e) count += __ldg(row.extra + e) == token;
    repeated = count > 0 || (__ldg(row.prompt + token / 32) >> (token % 32) & 1u);
  }
  const float bias = row.bias ? __ldg(row.bias + token) : 0.0f;
  if (!repeated && bias == 0) return;
  const float x = widen(*logit);
  narrow(biased(repeated ? penalized(x, count, row) : x, bias), *logit);
}

template <class T>
__global__ void __launch_bounds__(kThreads) change_kernel(const PenalizeCall call) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = blockIdx.y; i < call.logits.rows; i += gridDim.y) {
    if (!is_active(call, i)) continue;
    const PenaltyRow row(call, i);
    if (!row.penalizes && !row.bias) continue;
    T *logits = row_of<T>(call, i);
    for (std::int64_t c = blockIdx.x * kThreads + threadIdx.x; c < call.logits.vocab; c += step) {
      const std::int64_t token = c + (call.d2t ? __ldg(call.d2t + c) : 0);
      if (token >= 0 && token < row.vocab) change_column(row, token, logits + c);
    }
  }
}

// As many places of the bad words at a time as there are threads.
template <class T>
__global__ void __launch_bounds__(kThreads) block_bad_words_kernel(const PenalizeCall call) {
  __shared__ unsigned end;  // of the list
  __shared__ unsigned num_blocked;
  __shared__ std::int64_t blocked[kThreads];
  const std::int64_t i = blockIdx.x;
  if (!is_active(call, i)) return;
  const PenaltyRow row(call, i);
  T *logits = row_of<T>(call, i);
  const auto width = static_cast<unsigned>(row.bad_width);
  if (threadIdx.x == 0) end = width;
  __syncthreads();
  for (unsigned at = threadIdx.x; at < width; at += kThreads) {
    if (row.bad_words[at] < 0 && (at == 0 || row.bad_words[at - 1] < 0)) atomicMin(&end, at);
  }
  __syncthreads();
  const unsigned length = end;
  T neg_inf;
  narrow(-kInfinity, neg_inf);
  for (unsigned base = 0; base < length; base += kThreads) {
    if (threadIdx.x == 0) num_blocked = 0;
    __syncthreads();
    const unsigned at = base + threadIdx.x;
    if (at < length && ends_bad_word(row, at) && is_complete_but_for(row, at)) {
      blocked[atomicAdd(&num_blocked, 1u)] = row.bad_words[at];
    }
    __syncthreads();
    const unsigned count = num_blocked;
    if (call.d2t) {
      for (std::int64_t c = threadIdx.x; count > 0 && c < call.logits.vocab; c += kThreads) {
        const std::int64_t token = c + __ldg(call.d2t + c);
        for (unsigned b = 0; b < count; ++b) {
          if (blocked[b] == token) logits[c] = neg_inf;
        }
      }
    } else if (threadIdx.x < count && blocked[threadIdx.x] < call.logits.vocab) {
      logits[blocked[threadIdx.x]] = neg_inf;
    }
    __syncthreads();
  }
}

template <class T>
void launch(const PenalizeCall &call, int sms, void *stream) {
  const std::int64_t rows = call.logits.rows;
  const unsigned y = rows < kMaxRows ? static_cast<unsigned>(rows) : kMaxRows;
  const std::int64_t fill = (static_cast<std::int64_t>(sms) * kBlocksPerSm + y - 1) / y;
  const std::int64_t most = (call.logits.vocab + kThreads - 1) / kThreads;
  const dim3 grid(static_cast<unsigned>(fill < most ? fill : most), y);
  launch_kernel(change_kernel<T>, grid, kThreads, stream, call);
  if (call.tables.bad_width > 0) {
    launch_kernel(block_bad_words_kernel<T>, static_cast<unsigned>(rows), kThreads, stream, call);
  }
}

}  // namespace

const char *penalize_cuda(const PenalizeCall &call, int sms, void *stream) {
  if (call.logits.rows == 0 || call.logits.vocab == 0) return nullptr;
  with_element(call.logits.dtype, [&](auto element) { launch<decltype(element)>(call, sms, stream); });
  return launch_error();
}

}  // namespace weft
