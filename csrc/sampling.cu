// Coupled sampling on CUDA: several blocks share a row, each leaves its best, and a second kernel picks among them.
//
// A best is one number that orders like (sum, lowest token): the sum's bits made monotone, then the token's complement.
// 0 is none. The noise of gumbel.h is computed only where its cheap bound reaches the best sum of the block so far;
// what other threads have found by then decides how much is computed, never what is chosen.
#include <cuda_runtime.h>

#include <cmath>
#include <launch.cuh>

#include "gumbel.h"
#include "sampling.h"

namespace weft {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;       // groups of 4 columns in flight per thread
constexpr int kBlocksPerSm = 4;  // enough to hide the reads
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ std::uint32_t ordered(float x) {
  const std::uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));  // -0 becomes 0, which it equals
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float unordered(std::uint32_t bits) {
  return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

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

// A float16 widened by integer and float arithmetic, as exactly as by a conversion.
__device__ __forceinline__ float widen_half(std::uint32_t x) {
  const std::uint32_t shifted = (x & 0x7fffu) << 13;
  const std::uint32_t scaled = __float_as_uint(__fmul_rn(__uint_as_float(shifted), 0x1p112f));
  const std::uint32_t special = (x & 0x7c00u) == 0x7c00u ? shifted | 0x7f800000u : scaled;
  return __uint_as_float(special | (x & 0x8000u) << 16);
}

template <DType kType>
__device__ __forceinline__ float load_one(const void *row, std::int64_t column) {
  if constexpr (kType == DType::kFloat32) return static_cast<const float *>(row)[column];
  const std::uint32_t bits = static_cast<const std::uint16_t *>(row)[column];
  return kType == DType::kFloat16 ? widen_half(bits) : __uint_as_float(bits << 16);
}

// Columns first .. first + 3 of a row; -inf beyond the vocabulary.
template <DType kType>
__device__ __forceinline__ void load_four(const void *row, std::int64_t first, std::int64_t vocab, bool aligned,
                                          float (&x)[4]) {
  if (!aligned || first + 4 > vocab) {
#pragma unroll
    for (int k = 0; k < 4; ++k) x[k] = first + k < vocab ? load_one<kType>(row, first + k) : -INFINITY;
    return;
  }
  if constexpr (kType == DType::kFloat32) {
    const float4 v = *reinterpret_cast<const float4 *>(static_cast<const float *>(row) + first);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
  } else {
    const uint2 v = *reinterpret_cast<const uint2 *>(static_cast<const std::uint16_t *>(row) + first);
    const std::uint32_t bits[4] = {v.x & 0xffffu, v.x >> 16, v.y & 0xffffu, v.y >> 16};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      x[k] = kType == DType::kFloat16 ? widen_half(bits[k]) : __uint_as_float(bits[k] << 16);
    }
  }
}

struct Noise {
  float temperature;
  bool greedy;
  std::uint32_t seed_low, seed_high, position_low, position_high;

  __device__ Noise(const SampleCall &call, std::int64_t i) : temperature(call.temperature[i]) {
    greedy = !(temperature >= kLowestTemperature);
    const auto seed = static_cast<std::uint64_t>(call.seed[i]), position = static_cast<std::uint64_t>(call.position[i]);
    seed_low = static_cast<std::uint32_t>(seed), seed_high = static_cast<std::uint32_t>(seed >> 32);
    position_low = static_cast<std::uint32_t>(position), position_high = static_cast<std::uint32_t>(position >> 32);
  }
  __device__ __forceinline__ PhiloxWords words(std::uint32_t group) const {
    return philox4x32_10(position_low, position_high, group, kPurposeSample, seed_low, seed_high);
  }
};

template <bool kTarget>
__device__ void offer_four(const Noise &noise, const float (&x)[4], std::int64_t first, const std::int64_t *d2t,
                           volatile std::uint32_t *floor, std::uint64_t &best) {
  const float top = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));  // a NaN is no maximum
  const std::uint32_t floor_bits = *floor;
  const float least = floor_bits ? unordered(floor_bits) : -INFINITY;
  const float scale = noise.greedy ? 1.0f : noise.temperature;
  if (!(top > -INFINITY) || __fadd_rn(__fdiv_rn(top, scale), noise.greedy ? 0.0f : kLargestNoise) < least) return;
  PhiloxWords four;
  if (!kTarget && !noise.greedy) four = noise.words(static_cast<std::uint32_t>(first / 4));
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (!(x[k] > -INFINITY)) continue;
    const auto token = static_cast<std::uint32_t>(first + k + (kTarget ? __ldg(d2t + first + k) : 0));
    float sum = x[k];
    if (!noise.greedy) {
      std::uint32_t word;
      if constexpr (kTarget) {
        const PhiloxWords own = noise.words(token / 4);
        const std::uint32_t low = token & 1u ? own.word[1] : own.word[0];
        const std::uint32_t high = token & 1u ? own.word[3] : own.word[2];
        word = token & 2u ? high : low;
      } else {
        word = four.word[k];
      }
      const float scaled = __fdiv_rn(x[k], noise.temperature);
      if (__fadd_rn(scaled, gumbel_bound(word)) < least) continue;
      sum = __fadd_rn(scaled, gumbel(word));
    }
    if (!(sum > -INFINITY)) continue;
    const std::uint64_t candidate = static_cast<std::uint64_t>(ordered(sum)) << 32 | static_cast<std::uint32_t>(~token);
    if (candidate > best) {
      best = candidate;
      if (ordered(sum) > floor_bits) atomicMax(const_cast<std::uint32_t *>(floor), ordered(sum));
    }
  }
}

// Block b does part b % splits of row b / splits.
template <DType kType, bool kTarget>
__global__ void __launch_bounds__(kThreads)
    sample_kernel(const SampleCall call, unsigned splits, std::uint64_t *partial) {
  constexpr std::size_t kBytes = kType == DType::kFloat32 ? 4 : 2;
  __shared__ std::uint32_t floor;  // the block's best sum so far, ordered; 0 is none
  __shared__ std::uint64_t best_of_warp[kThreads / kWarp];
  if (threadIdx.x == 0) floor = 0;
  __syncthreads();

  const std::int64_t i = blockIdx.x / splits;
  const Noise noise(call, i);
  const std::int64_t vocab = call.logits.vocab;
  const char *row =
      static_cast<const char *>(call.logits.data) + i * call.logits.stride * static_cast<std::int64_t>(kBytes);
  const bool aligned = reinterpret_cast<std::uintptr_t>(row) % (4 * kBytes) == 0;
  const std::int64_t groups = (vocab + 3) / 4, step = static_cast<std::int64_t>(splits) * kThreads;
  std::uint64_t best = 0;
  for (std::int64_t g = static_cast<std::int64_t>(blockIdx.x % splits) * kThreads + threadIdx.x; g < groups;
       g += step * kUnroll) {
    float x[kUnroll][4];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) load_four<kType>(row, 4 * (g + u * step), vocab, aligned, x[u]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      offer_four<kTarget>(noise, x[u], 4 * (g + u * step), call.d2t, &floor, best);
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

template <DType kType>
void launch(const SampleCall &call, unsigned splits, std::uint64_t *workspace, void *stream) {
  const auto blocks = static_cast<unsigned>(call.logits.rows * splits);
  if (call.d2t) {
    launch_kernel(sample_kernel<kType, true>, blocks, kThreads, stream, call, splits, workspace);
  } else {
    launch_kernel(sample_kernel<kType, false>, blocks, kThreads, stream, call, splits, workspace);
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
  switch (call.logits.dtype) {
    case DType::kFloat32:
      launch<DType::kFloat32>(call, splits, workspace, stream);
      break;
    case DType::kFloat16:
      launch<DType::kFloat16>(call, splits, workspace, stream);
      break;
    case DType::kBFloat16:
      launch<DType::kBFloat16>(call, splits, workspace, stream);
      break;
  }
  if (const char *error = launch_error()) return error;
  if (splits == 1) return nullptr;
  const auto blocks = static_cast<unsigned>((rows * kWarp + kThreads - 1) / kThreads);
  launch_kernel(pick_kernel, blocks, kThreads, stream, workspace, splits, rows, call.out);
  return launch_error();
}

}  // namespace weft
