// Loads from rows of logits in CUDA kernels: four columns at a time, widened to float32.
#pragma once

#include <cuda_runtime.h>

#include "kernels/floats.h"
#include "kernels/logits.h"

namespace weft {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// Calls fn with a value of the C++ type of `dtype`, so that fn can deduce the type; the value has no meaning.
template <class F>
void with_element(DType dtype, F &&fn) {
  switch (dtype) {
    case DType::kFloat32:
      fn(float{});
      break;
    case DType::kFloat16:
      fn(Half{});
      break;
    case DType::kBFloat16:
      fn(BFloat16{});
      break;
  }
}

template <class T, class Call>
__device__ __forceinline__ T *row_of(const Call &call, std::int64_t i) {
  return static_cast<T *>(call.logits.data) + i * call.logits.stride;
}

// Whether load_four may load four columns of the row at once.
template <class T>
__device__ __forceinline__ bool is_aligned_four(const T *row) {
  return reinterpret_cast<std::uintptr_t>(row) % (4 * sizeof(T)) == 0;
}

__device__ __forceinline__ void widen_four(const float *at, float (&x)[4]) {
  const float4 v = *reinterpret_cast<const float4 *>(at);
  x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

template <class T>
__device__ __forceinline__ void widen_four(const T *at, float (&x)[4]) {
  const uint2 v = *reinterpret_cast<const uint2 *>(at);
  const std::uint32_t bits[4] = {v.x & 0xffffu, v.x >> 16, v.y & 0xffffu, v.y >> 16};
#pragma unroll
  for (int k = 0; k < 4; ++k) x[k] = widen(T{static_cast<std::uint16_t>(bits[k])});
}

// Loads columns first .. first + 3 of a row into `x`. Columns beyond the vocabulary are -inf.
template <class T>
__device__ __forceinline__ void load_four(const T *row, std::int64_t first, std::int64_t vocab, bool aligned,
                                          float (&x)[4]) {
  if (aligned && first + 4 <= vocab) return widen_four(row + first, x);
#pragma unroll
  for (int k = 0; k < 4; ++k) x[k] = first + k < vocab ? widen(row[first + k]) : -kInfinity;
}

}  // namespace weft
