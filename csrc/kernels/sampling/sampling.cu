// Coupled sampling on CUDA: several blocks share a row, each leaves its best, and a second kernel picks among them.
//
// A best is one number that orders like (sum, lowest token): the sum's bits made monotone, then the token's complement.
// 0 is none. The noise of kernels/sampling/gumbel.h is computed only where its cheap bound reaches the best sum of the
// block so far; what other threads have found by then decides how much is computed, never what is chosen.
#include <cuda_runtime.h>

#include <kernels/launch.cuh>

#include "kernels/columns.cuh"
#include "kernels/sampling/sample_rule.h"

namespace weft {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;       // groups of 4 columns in flight per thread
constexpr int kBlocksPerSm = 3;  // as many as fit: 75 to 80 registers a thread

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
    top = x[k] > top ? x[k] : top;  // a NaN is no maximum
  }
  const std::uint32_t bar_bits = *bar;
  const float least = bar_bits ? unordered(bar_bits) : -kInfinity;
  const float scale = draw.greedy ? 1.0f : draw.temperature;
  if (!(top > -kInfinity) || __fadd_rn(__fdiv_rn(top, scale), draw.greedy ? 0.0f : kLargestNoise) < least) return;
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
      if (__fadd_rn(scaled, gumbel_bound(word)) < least) continue;
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

// Block b does part b % splits of row b / splits.
template <class T, bool kTarget>
__global__ void __launch_bounds__(kThreads)
    sample_kernel(const SampleCall call, unsigned splits, std::uint64_t *partial) {
  __shared__ std::uint32_t bar;  // the block's best sum so far, ordered; 0 is none
  __shared__ std::uint64_t best_of_warp[kThreads / kWarp];
  if (threadIdx.x == 0) bar = 0;
  __syncthreads();

  const std::int64_t i = blockIdx.x / splits;
  const RowDraw draw(call, i);
  const std::int64_t vocab = call.logits.vocab;
  const T *row = row_of<T>(call, i);
  const bool aligned = is_aligned_four(row);
  const std::int64_t groups = (vocab + 3) / 4, step = static_cast<std::int64_t>(splits) * kThreads;
  std::uint64_t best = 0;
  for (std::int64_t g = static_cast<std::int64_t>(blockIdx.x % splits) * kThreads + threadIdx.x; g < groups;
       g += step * kUnroll) {
    float x[kUnroll][4];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) load_four(row, 4 * (g + u * step), vocab, aligned, x[u]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      offer_four<kTarget>(draw, x[u], 4 * (g + u * step), call.d2t, &bar, best);
    }
  }

  best = warp_largest(best);
  if (threadIdx.x % kWarp == 0) best_of_warp[threadIdx.x / kWarp] = best;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  best = warp_largest(threadIdx.x < kThreads / kWarp ? best_of_warp[threadIdx.x] : 0);
  if (threadIdx.x != 0) return;
  if (splits == 1) {
    call.out[i] = token_of(best);
  } else {
    partial[blockIdx.x] = best;
  }
}

// One warp per row.
__global__ void __launch_bounds__(kThreads)
    pick_kernel(const std::uint64_t *partial, unsigned splits, std::int64_t rows, std::int64_t *out) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (i >= rows) return;
  std::uint64_t best = 0;
  for (unsigned s = threadIdx.x % kWarp; s < splits; s += kWarp) best = larger(best, partial[i * splits + s]);
  best = warp_largest(best);
  if (threadIdx.x % kWarp == 0) out[i] = token_of(best);
}

template <class T>
void launch(const SampleCall &call, unsigned splits, std::uint64_t *workspace, void *stream) {
  const auto blocks = static_cast<unsigned>(call.logits.rows * splits);
  if (call.d2t) {
    launch_kernel(sample_kernel<T, true>, blocks, kThreads, stream, call, splits, workspace);
  } else {
    launch_kernel(sample_kernel<T, false>, blocks, kThreads, stream, call, splits, workspace);
  }
}

}  // namespace

std::int64_t sample_splits_cuda(std::int64_t rows, std::int64_t vocab, int sms) {
  if (rows == 0) return 1;
  constexpr std::int64_t kColumns = 4 * kThreads;
  const std::int64_t fill = static_cast<std::int64_t>(sms) * kBlocksPerSm / rows;
  const std::int64_t most = (vocab + kColumns - 1) / kColumns;
  const std::int64_t splits = fill < most ? fill : most;
  return splits > 1 ? splits : 1;
}

const char *sample_cuda(const SampleCall &call, int sms, std::uint64_t *workspace, void *stream) {
  const std::int64_t rows = call.logits.rows;
  if (rows == 0) return nullptr;
  const auto splits = static_cast<unsigned>(sample_splits_cuda(rows, call.logits.vocab, sms));
  with_element(call.logits.dtype, [&](auto element) { launch<decltype(element)>(call, splits, workspace, stream); });
  if (const char *error = launch_error()) return error;
  if (splits == 1) return nullptr;
  const auto blocks = static_cast<unsigned>((rows * kWarp + kThreads - 1) / kThreads);
  launch_kernel(pick_kernel, blocks, kThreads, stream, workspace, splits, rows, call.out);
  return launch_error();
}

}  // namespace weft
