// Truncation on CUDA, for the threads of a team on one row. Each round of the narrowing
// (kernels/sampling/truncation_rule.h) is one pass over the row. After the first pass the row is in the L2 cache. Every
// block counts its columns in a histogram. Then it adds up one slice of the bins over all blocks, and finds the bin
// where the wanted amount is reached.
#pragma once

#include <cuda_runtime.h>

#include <kernels/team.cuh>

#include "kernels/columns.cuh"
#include "kernels/sampling/truncation_rule.h"

namespace weft {

constexpr int kBinsOfGroup = 2 * kWarp;  // bins whose sums one warp adds up
constexpr int kGroups = kBins / kBinsOfGroup;
static_assert(kGroups == kWarp);

// Amounts of 64 bits in two words each: shared memory adds 32 bits at a time.
struct Histogram {
  std::uint32_t low[kBins], high[kBins];

  __device__ __forceinline__ void add(std::uint32_t part, std::uint64_t amount) {
    const auto word = static_cast<std::uint32_t>(amount);
    const bool carry = word && atomicAdd(&low[part], word) + word < word;
    const std::uint32_t rest = static_cast<std::uint32_t>(amount >> 32) + carry;
    if (rest) atomicAdd(&high[part], rest);
  }
  __device__ __forceinline__ std::uint64_t at(int part) const { return std::uint64_t{high[part]} << 32 | low[part]; }
};

struct TruncationMemory {
  Histogram histogram;           // of the block's columns
  std::uint64_t sum[kBins];      // over all blocks: this block's slice of the bins
  std::uint64_t group[kGroups];  // sums of the slice's groups of bins
  KeyRange range;                // the current range of the narrowing
  std::uint64_t missing;
  bool reached;
  std::uint32_t top, top_of_all;  // keys of the largest logits
};

__device__ __forceinline__ std::uint64_t warp_sum(std::uint64_t value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

// An inclusive prefix sum over the lanes of a warp.
__device__ __forceinline__ std::uint64_t warp_prefix(std::uint64_t value) {
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const std::uint64_t before = __shfl_up_sync(kAllLanes, value, distance);
    if (threadIdx.x % kWarp >= static_cast<unsigned>(distance)) value += before;
  }
  return value;
}

template <class T>
struct TruncatedRow {
  const T *logits;
  std::int64_t vocab;
  const Team &team;
  TruncationMemory &memory;
  float top = 0, scale = 1;

  template <class F>
  __device__ __forceinline__ void for_each(F &&fn) const {
    const bool aligned = is_aligned_four(logits);
    const std::int64_t step = 4 * static_cast<std::int64_t>(team.size) * kTeamThreads;
    for (std::int64_t first = 4 * (team.rank * kTeamThreads + threadIdx.x); first < vocab; first += step) {
      float x[4];
      load_four(logits, first, vocab, aligned, x);
#pragma unroll
      for (int k = 0; k < 4; ++k) fn(x[k]);
    }
  }

  __device__ std::uint32_t top_key() const {
    if (threadIdx.x == 0) memory.top = 0;
    __syncthreads();
    std::uint32_t largest = 0;
    for_each([&](float x) { largest = key_of(x) > largest ? key_of(x) : largest; });
    if (largest > 0) atomicMax(&memory.top, largest);
    team.sync();
    if (threadIdx.x == 0) {
      std::uint32_t key = 0;
      for (unsigned r = 0; r < team.size; ++r) {
        const std::uint32_t other = *team.of(&memory.top, r);
        key = other > key ? other : key;
      }
      memory.top_of_all = key;
    }
    __syncthreads();
    return memory.top_of_all;
  }

  template <bool kMass>
  __device__ void count(KeyRange range, int shift) const {
    Histogram &histogram = memory.histogram;
    for (int part = threadIdx.x; part < kBins; part += kTeamThreads) histogram.low[part] = histogram.high[part] = 0;
    __syncthreads();
    for_each([&](float x) {
      const std::uint32_t key = key_of(x);
      if (range.holds(key)) histogram.add(range.part(key, shift), kMass ? mass_of(x, top, scale) : 1);
    });
    team.sync();
    const int slice = kBins / static_cast<int>(team.size), first = static_cast<int>(team.rank) * slice;
    for (int part = threadIdx.x; part < slice; part += kTeamThreads) {
      std::uint64_t sum = 0;
      for (unsigned r = 0; r < team.size; ++r) sum += team.of(&histogram, r)->at(first + part);
      memory.sum[part] = sum;
    }
    __syncthreads();
    const int lane = threadIdx.x % kWarp;
    for (int group = threadIdx.x / kWarp; group < slice / kBinsOfGroup; group += kTeamThreads / kWarp) {
      const std::uint64_t *bins = memory.sum + group * kBinsOfGroup;
      const std::uint64_t sum = warp_sum(bins[lane] + bins[kWarp + lane]);
      if (lane == 0) memory.group[group] = sum;
    }
    team.sync();
  }

  // Finds the part of the range where the wanted amount is reached, and stores it as the next range. One warp of each
  // block runs it, and all blocks get the same result.
  template <class Wanted>
  __device__ void narrow_range(KeyRange range, int shift, bool first, Wanted wanted) const {
    const int lane = threadIdx.x, groups = kGroups / static_cast<int>(team.size);  // of a block
    const std::uint64_t of_group = team.of(&memory, lane / groups)->group[lane % groups];
    const std::uint64_t total = warp_sum(of_group);
    std::uint64_t missing = first ? wanted(total) : memory.missing;
    const bool reached = missing <= total;
    if (reached) {
      // Find the group of bins in which the wanted amount is reached, then the half of the group, then the bin.
      const std::uint64_t up_to = warp_prefix(of_group);
      const int group = __ffs(static_cast<int>(__ballot_sync(kAllLanes, up_to >= missing))) - 1;
      missing -= __shfl_sync(kAllLanes, up_to - of_group, group);
      const std::uint64_t *bins = team.of(&memory, group / groups)->sum + group % groups * kBinsOfGroup;
      const std::uint64_t low = bins[lane], high = bins[kWarp + lane];
      const std::uint64_t up_to_low = warp_prefix(low), all_low = __shfl_sync(kAllLanes, up_to_low, kWarp - 1);
      const bool is_low = missing <= all_low;
      if (!is_low) missing -= all_low;
      const std::uint64_t bin = is_low ? low : high, up_to_bin = is_low ? up_to_low : warp_prefix(high);
      const int at = __ffs(static_cast<int>(__ballot_sync(kAllLanes, up_to_bin >= missing))) - 1;
      missing -= __shfl_sync(kAllLanes, up_to_bin - bin, at);
      range = range.of_part(static_cast<std::uint32_t>(group * kBinsOfGroup + (is_low ? 0 : kWarp) + at), shift);
    }
    if (lane == 0) memory.range = range, memory.missing = missing, memory.reached = reached;
  }

  // Returns the threshold key, by the same rule as on the CPU (truncation.cpp). Every thread of the team gets the
  // result.
  template <bool kMass, class Wanted>
  __device__ std::uint32_t select(KeyRange range, Wanted wanted) const {
    for (bool first = true;; first = false) {
      const int shift = range.shift();
      count<kMass>(range, shift);
      if (threadIdx.x < kWarp) narrow_range(range, shift, first, wanted);
      __syncthreads();
      range = memory.range;
      if (!memory.reached) return 0;
      if (shift == 0) return range.high;
    }
  }
};

// Returns the row's floor. Every thread of the team gets it.
template <class T>
__device__ float floor_of_row(const Cuts &cuts, const T *logits, std::int64_t vocab, TruncationMemory &memory,
                              const Team &team) {
  if (!cuts.any()) return -kInfinity;
  TruncatedRow<T> row{logits, vocab, team, memory, 0.0f, mass_scale(cuts.temperature)};
  const std::uint32_t top = row.top_key();
  if (top == 0) return -kInfinity;
  row.top = unordered(top);
  std::uint32_t key = 0;
  if (cuts.top_k > 0) {
    key = row.template select<false>({kLowestKey, top},
                                     [&](std::uint64_t) { return static_cast<std::uint64_t>(cuts.top_k); });
  }
  if (cuts.by_mass()) {
    const std::uint32_t lowest = lowest_with_mass(row.top, row.scale);
    key = row.template select<true>({key > lowest ? key : lowest, top},
                                    [&](std::uint64_t total) { return wanted_mass(cuts.top_p, total); });
  }
  return cuts.floor(key, row.top);
}

}  // namespace weft
