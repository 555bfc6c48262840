// Emulates on the CPU the part of CUDA that weft's kernels use. Each thread of a block is a CPU thread, and blocks run
// one at a time. It replaces CUDA's own header, so that logic, bounds and alignment are tested without a GPU.
#pragma once

#include <atomic>
#include <barrier>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
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
inline void __threadfence() {}
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

struct Team;

struct Block {
  explicit Block(unsigned threads) : all(threads), lane(threads) {
    for (unsigned begin = 0; begin < threads; begin += kWarp) warp.push_back(std::make_unique<std::barrier<>>(kWarp));
  }
  std::barrier<> all;
  std::vector<std::unique_ptr<std::barrier<>>> warp;
  std::vector<std::uint64_t> lane;
  std::vector<std::byte> memory;  // of a block in a team; other kernels have static memory
  unsigned rank = 0;
  Team *team = nullptr;
};
inline thread_local Block *block = nullptr;

// The blocks of a team, which run at the same time.
struct Team {
  Team(unsigned size, unsigned threads) : size(size), all(size * threads) {
    for (unsigned rank = 0; rank < size; ++rank) {
      blocks.push_back(std::make_unique<Block>(threads));
      blocks.back()->memory.assign(48 * 1024, std::byte{0xa5});  // shared memory starts uninitialised
      blocks.back()->rank = rank, blocks.back()->team = this;
    }
  }
  unsigned size;
  std::barrier<> all;
  std::vector<std::unique_ptr<Block>> blocks;
};

}  // namespace cuda_on_cpu

inline void __syncthreads() { cuda_on_cpu::block->all.arrive_and_wait(); }

namespace cuda_on_cpu {

// Returns fn(values) for the values of all lanes of the warp, of which `value` is this lane's.
template <class F>
auto with_lanes(std::uint64_t value, F &&fn) {
  std::barrier<> &warp = *block->warp[threadIdx.x / kWarp];
  block->lane[threadIdx.x] = value;
  warp.arrive_and_wait();
  const auto found = fn(block->lane.data() + threadIdx.x / kWarp * kWarp);
  warp.arrive_and_wait();
  return found;
}

}  // namespace cuda_on_cpu

inline std::uint64_t __shfl_xor_sync(unsigned, std::uint64_t value, unsigned distance) {
  return cuda_on_cpu::with_lanes(value,
                                 [&](auto *lanes) { return lanes[threadIdx.x % cuda_on_cpu::kWarp ^ distance]; });
}
inline std::uint64_t __shfl_up_sync(unsigned, std::uint64_t value, unsigned distance) {
  const unsigned lane = threadIdx.x % cuda_on_cpu::kWarp;
  return cuda_on_cpu::with_lanes(value, [&](auto *lanes) { return lanes[lane >= distance ? lane - distance : lane]; });
}
inline std::uint64_t __shfl_sync(unsigned, std::uint64_t value, int from) {
  return cuda_on_cpu::with_lanes(value, [&](auto *lanes) { return lanes[from]; });
}
inline unsigned __ballot_sync(unsigned, bool is_set) {
  return cuda_on_cpu::with_lanes(is_set, [&](auto *lanes) {
    unsigned bits = 0;
    for (unsigned lane = 0; lane < cuda_on_cpu::kWarp; ++lane) bits |= static_cast<unsigned>(lanes[lane]) << lane;
    return bits;
  });
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }
