// As much of CUDA as weft's kernels use, on the CPU: a thread for each of a block's, blocks one after another. It
// stands in for CUDA's own header, so that the kernels' logic, bounds and alignment are tested where there is no GPU.
#pragma once

#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline thread_local dim3 threadIdx, blockIdx;
inline dim3 gridDim;

template <class T>
T __ldg(const T *p) {
  return *p;
}
template <class T>
T __ldcv(const T *p) {
  return *p;
}
inline std::uint32_t __funnelshift_r(std::uint32_t low, std::uint32_t high, int shift) {
  return static_cast<std::uint32_t>((std::uint64_t{high} << 32 | low) >> (shift & 31));
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline std::uint32_t __float_as_uint(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __uint_as_float(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
template <class T>
T atomicAdd(T *p, T value) {
  return std::atomic_ref<T>(*p).fetch_add(value);
}
inline void atomicMax(std::uint32_t *p, std::uint32_t value) {
  std::atomic_ref<std::uint32_t> at(*p);
  std::uint32_t old = at.load();
  while (old < value && !at.compare_exchange_weak(old, value)) {
  }
}
inline void atomicMin(std::uint32_t *p, std::uint32_t value) {
  std::atomic_ref<std::uint32_t> at(*p);
  std::uint32_t old = at.load();
  while (old > value && !at.compare_exchange_weak(old, value)) {
  }
}

namespace cuda_on_cpu {

constexpr unsigned kWarp = 32;

struct Block {
  explicit Block(unsigned threads) : all(threads), lane(threads) {
    for (unsigned begin = 0; begin < threads; begin += kWarp) warp.push_back(std::make_unique<std::barrier<>>(kWarp));
  }
  std::barrier<> all;
  std::vector<std::unique_ptr<std::barrier<>>> warp;
  std::vector<std::uint64_t> lane;
};
inline Block *block = nullptr;

}  // namespace cuda_on_cpu

inline void __syncthreads() { cuda_on_cpu::block->all.arrive_and_wait(); }
inline std::uint64_t __shfl_xor_sync(unsigned, std::uint64_t value, unsigned distance) {
  cuda_on_cpu::Block &block = *cuda_on_cpu::block;
  std::barrier<> &warp = *block.warp[threadIdx.x / cuda_on_cpu::kWarp];
  block.lane[threadIdx.x] = value;
  warp.arrive_and_wait();
  const std::uint64_t other = block.lane[threadIdx.x ^ distance];
  warp.arrive_and_wait();
  return other;
}
