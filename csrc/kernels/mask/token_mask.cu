// The mask kernels on CUDA. A thread works on aligned groups of 16 bytes of logits. The first and the last group of a
// row may be partial and are handled element by element. A group with nothing blocked reads and writes no logits; a
// group with all blocked only writes.
#include <cuda_runtime.h>

#include <kernels/launch.cuh>

#include "kernels/mask/token_mask.h"

namespace weft {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;            // groups in flight per thread
constexpr int kBlocksPerSm = 8;       // 2048 threads
constexpr unsigned kMaxRows = 65535;  // the limit of a grid's y

template <DType>
struct Type;
template <>
struct Type<DType::kFloat32> {
  using Bits = std::uint32_t;
  static constexpr Bits kNegInf = kNegInf32;
};
template <>
struct Type<DType::kFloat16> {
  using Bits = std::uint16_t;
  static constexpr Bits kNegInf = kNegInfHalf;
};
template <>
struct Type<DType::kBFloat16> {
  using Bits = std::uint16_t;
  static constexpr Bits kNegInf = kNegInfBFloat16;
};

// A mask row as a sequence of bits; bits beyond it are 0.
struct MaskRow {
  const std::uint32_t *words;
  std::int64_t count;

  __device__ __forceinline__ std::uint32_t word(std::int64_t i) const {
    return i >= 0 && i < count ? __ldg(words + i) : 0u;
  }
  // Returns the mask bits from bit `first` on, starting at bit 0 of the result. At least kCount of them are valid.
  // `first` may be negative.
  template <int kCount>
  __device__ __forceinline__ std::uint32_t bits(std::int64_t first) const {
    const std::int64_t i = first >> 5;
    const int shift = static_cast<int>(first & 31);
    const std::uint32_t low = word(i);
    const std::uint32_t high = shift + kCount > 32 ? word(i + 1) : 0u;
    return __funnelshift_r(low, high, shift);
  }
  __device__ __forceinline__ std::uint32_t bit(std::uint64_t token) const {
    return token < static_cast<std::uint64_t>(count) * 32 ? __ldg(words + (token >> 5)) >> (token & 31) & 1u : 0u;
  }
};

template <bool kTarget, int kCount>
__device__ __forceinline__ std::uint32_t allowed_columns(const MaskRow &mask, const std::int64_t *d2t,
                                                         std::int64_t first, std::int64_t vocab) {
  constexpr std::uint32_t kAll = (1u << kCount) - 1u;
  if constexpr (!kTarget) {
    return mask.bits<kCount>(first) & kAll;
  } else {
    std::uint32_t allowed = 0;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const std::int64_t column = first + j;
      if (column < 0 || column >= vocab) continue;
      allowed |= mask.bit(static_cast<std::uint64_t>(column + __ldg(d2t + column))) << j;
    }
    return allowed;
  }
}

template <class T, int kCount>
__device__ __forceinline__ void store_mixed(T *p, std::uint32_t allowed, T neg_inf) {
  union {
    uint4 vector;
    T element[kCount];
  } group;
  group.vector = *reinterpret_cast<const uint4 *>(p);
#pragma unroll
  for (int j = 0; j < kCount; ++j) group.element[j] = allowed >> j & 1u ? group.element[j] : neg_inf;
  *reinterpret_cast<uint4 *>(p) = group.vector;
}

template <DType kType, bool kTarget>
__global__ void __launch_bounds__(kThreads) apply_kernel(const ApplyCall call) {
  begin_chained();
  using T = typename Type<kType>::Bits;
  constexpr int kCount = 16 / sizeof(T);
  constexpr std::uint32_t kAll = (1u << kCount) - 1u;
  constexpr T kNegInf = Type<kType>::kNegInf;
  constexpr std::uint32_t kFill = sizeof(T) == 4 ? kNegInf : kNegInf * 0x10001u;
  const std::int64_t vocab = call.logits.vocab;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;

  for (std::int64_t i = blockIdx.y; i < call.logits.rows; i += gridDim.y) {
    const std::int64_t row = call.rows.at(i);
    const bool known = row >= 0 && row < call.bitmask.rows;
    if ((known || !call.rows.positions) && call.skips(i, row)) continue;
    const MaskRow mask{call.bitmask.data + (known ? row * call.bitmask.stride : 0), known ? call.bitmask.words : 0};
    T *const logits = static_cast<T *>(call.logits.data) + i * call.logits.stride;
    // Group g has the kCount columns from g * kCount - shift on, which share 16 aligned bytes.
    const auto shift = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(logits) % 16 / sizeof(T));
    const std::int64_t groups = (shift + vocab + kCount - 1) / kCount;

    for (std::int64_t g = blockIdx.x * kThreads + threadIdx.x; g < groups; g += step * kUnroll) {
      std::uint32_t allowed[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const std::int64_t at = g + u * step;
        allowed[u] = at < groups ? allowed_columns<kTarget, kCount>(mask, call.d2t, at * kCount - shift, vocab) : kAll;
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (allowed[u] == kAll) continue;
        const std::int64_t first = (g + u * step) * kCount - shift;
        if (first < 0 || first + kCount > vocab) {
          for (int j = 0; j < kCount; ++j) {
            const std::int64_t column = first + j;
            if (column >= 0 && column < vocab && !(allowed[u] >> j & 1u)) logits[column] = kNegInf;
          }
        } else if (allowed[u] == 0) {
          *reinterpret_cast<uint4 *>(logits + first) = make_uint4(kFill, kFill, kFill, kFill);
        } else {
          store_mixed<T, kCount>(logits + first, allowed[u], kNegInf);
        }
      }
    }
  }
}

// There is one block for every kThreads groups of 16 bytes of a row (words, if rows are not aligned), so that many
// reads are in flight on the bus. Reads of host memory bypass the caches, because the host changes it between launches.
template <class V>
__global__ void __launch_bounds__(kThreads) copy_kernel(const CopyCall call) {
  begin_chained();
  constexpr std::int64_t kWords = sizeof(V) / sizeof(std::uint32_t);
  for (std::int64_t i = blockIdx.y; i < call.count; i += gridDim.y) {
    const std::int64_t row = call.rows.at(i);
    if (row < 0 || row >= call.mask_rows) continue;
    const std::int32_t flag = __ldcv(call.src_token_mask + row);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      call.dst_token_mask[row] = flag;
      if (call.dst_temperatures) call.dst_temperatures[row] = __ldcv(call.src_temperatures + row);
    }
    if (!flag) continue;
    const auto *src = reinterpret_cast<const V *>(call.src_masks + row * call.src_stride);
    auto *dst = reinterpret_cast<V *>(call.dst_masks + row * call.dst_stride);
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (at < call.words / kWords) dst[at] = __ldcv(src + at);
  }
}

bool is_aligned16(const void *p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

unsigned grid_rows(std::int64_t rows) { return rows < kMaxRows ? static_cast<unsigned>(rows) : kMaxRows; }

template <DType kType>
void launch_apply(const ApplyCall &call, int sms, void *stream) {
  constexpr std::int64_t kColumns = kThreads * (16 / sizeof(typename Type<kType>::Bits));
  const unsigned y = grid_rows(call.logits.rows);
  // Use enough blocks to fill the device once, but no block without a group to work on.
  const std::int64_t fill = (static_cast<std::int64_t>(sms) * kBlocksPerSm + y - 1) / y;
  const std::int64_t limit = (call.logits.vocab + kColumns - 1) / kColumns;
  const dim3 grid(static_cast<unsigned>(fill < limit ? fill : limit), y);
  if (call.d2t) {
    launch_kernel(apply_kernel<kType, true>, grid, kThreads, stream, call);
  } else {
    launch_kernel(apply_kernel<kType, false>, grid, kThreads, stream, call);
  }
}

}  // namespace

const char *apply_token_bitmask_cuda(const ApplyCall &call, int sms, void *stream) {
  if (call.logits.rows == 0 || call.logits.vocab == 0) return nullptr;
  switch (call.logits.dtype) {
    case DType::kFloat32:
      launch_apply<DType::kFloat32>(call, sms, stream);
      break;
    case DType::kFloat16:
      launch_apply<DType::kFloat16>(call, sms, stream);
      break;
    case DType::kBFloat16:
      launch_apply<DType::kBFloat16>(call, sms, stream);
      break;
  }
  return launch_error();
}

const char *copy_mask_rows_cuda(const CopyCall &call, void *stream) {
  if (call.count == 0) return nullptr;
  const bool wide = is_aligned16(call.dst_masks) && is_aligned16(call.src_masks) && call.words % 4 == 0 &&
                    call.dst_stride % 4 == 0 && call.src_stride % 4 == 0;
  const std::int64_t parts = wide ? call.words / 4 : call.words;
  const dim3 grid(static_cast<unsigned>(parts > 0 ? (parts + kThreads - 1) / kThreads : 1), grid_rows(call.count));
  if (wide) {
    launch_kernel(copy_kernel<uint4>, grid, kThreads, stream, call);
  } else {
    launch_kernel(copy_kernel<std::uint32_t>, grid, kThreads, stream, call);
  }
  return launch_error();
}

}  // namespace weft
