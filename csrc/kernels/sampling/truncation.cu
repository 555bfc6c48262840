// Truncation on CUDA: a block per row. Each step of the narrowing (kernels/sampling/truncation_rule.h) is one pass over
// the row, which the first leaves in the L2 cache, into a histogram in shared memory.
#include <cuda_runtime.h>

#include <kernels/launch.cuh>

#include "kernels/columns.cuh"
#include "kernels/sampling/truncation.h"
#include "kernels/sampling/truncation_rule.h"

namespace weft {
namespace {

constexpr int kThreads = 1024;
constexpr int kGroups = 32;  // of bins, added up together to find where an amount is reached

// Amounts of 64 bits in two words each: shared memory adds 32 bits at a time.
struct Histogram {
  std::uint32_t low[kBins], high[kBins];
  std::uint64_t group[kGroups];

  __device__ __forceinline__ void add(std::uint32_t part, std::uint64_t amount) {
    const auto word = static_cast<std::uint32_t>(amount);
    const bool carry = word && atomicAdd(&low[part], word) + word < word;
    const std::uint32_t rest = static_cast<std::uint32_t>(amount >> 32) + carry;
    if (rest) atomicAdd(&high[part], rest);
  }
  __device__ __forceinline__ std::uint64_t at(int part) const { return std::uint64_t{high[part]} << 32 | low[part]; }
};

struct Step {  // where the narrowing stands; thread 0 writes it
  KeyRange range;
  std::uint64_t missing;
  bool reached;
};

struct Shared {
  Histogram histogram;
  Step step;
  std::uint32_t top;  // key of the largest logit
};

template <class T>
struct RowLogits {
  const T *logits;
  std::int64_t vocab;
  float top, scale;

  template <class F>
  __device__ __forceinline__ void for_each(F &&fn) const {
    const bool aligned = is_aligned_four(logits);
    for (std::int64_t first = 4 * threadIdx.x; first < vocab; first += 4 * kThreads) {
      float x[4];
      load_four(logits, first, vocab, aligned, x);
#pragma unroll
      for (int k = 0; k < 4; ++k) fn(x[k]);
    }
  }

  template <bool kMass>
  __device__ void count(Histogram &histogram, KeyRange range, int shift) const {
    for (int part = threadIdx.x; part < kBins; part += kThreads) histogram.low[part] = histogram.high[part] = 0;
    __syncthreads();
    for_each([&](float x) {
      const std::uint32_t key = key_of(x);
      if (range.holds(key)) histogram.add(range.part(key, shift), kMass ? mass_of(x, top, scale) : 1);
    });
    __syncthreads();
    if (threadIdx.x < kGroups) {
      constexpr int kParts = kBins / kGroups;
      std::uint64_t sum = 0;
      for (int part = 0; part < kParts; ++part) sum += histogram.at(threadIdx.x * kParts + part);
      histogram.group[threadIdx.x] = sum;
    }
    __syncthreads();
  }

  // As on the CPU; every thread gets the answer.
  template <bool kMass, class Wanted>
  __device__ std::uint32_t select(Shared &shared, KeyRange range, Wanted wanted) const {
    Step &step = shared.step;
    for (bool first = true;; first = false) {
      const int shift = range.shift();
      count<kMass>(shared.histogram, range, shift);
      if (threadIdx.x == 0) narrow_range(shared, range, shift, first, wanted);
      __syncthreads();
      range = step.range;
      const bool reached = step.reached;
      __syncthreads();
      if (!reached) return 0;
      if (shift == 0) return range.high;
    }
  }

  template <class Wanted>
  __device__ void narrow_range(Shared &shared, KeyRange range, int shift, bool first, Wanted wanted) const {
    const Histogram &histogram = shared.histogram;
    std::uint64_t sum = 0;
    for (int group = 0; group < kGroups; ++group) sum += histogram.group[group];
    std::uint64_t missing = first ? wanted(sum) : shared.step.missing;
    const bool reached = missing <= sum;
    if (reached) {
      int group = 0;
      for (; histogram.group[group] < missing; ++group) missing -= histogram.group[group];
      int part = group * (kBins / kGroups);
      for (; histogram.at(part) < missing; ++part) missing -= histogram.at(part);
      range = range.of_part(static_cast<std::uint32_t>(part), shift);
    }
    shared.step = {range, missing, reached};
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads) truncate_kernel(const TruncateCall call) {
  __shared__ Shared shared;
  const std::int64_t i = blockIdx.x;
  const Cuts cuts(call, i);
  if (!cuts.any()) {
    if (threadIdx.x == 0) call.floor[i] = -kInfinity;
    return;
  }
  RowLogits<T> row{row_of<const T>(call, i), call.logits.vocab, 0.0f, mass_scale(cuts.temperature)};
  if (threadIdx.x == 0) shared.top = 0;
  __syncthreads();
  std::uint32_t largest = 0;
  row.for_each([&](float x) { largest = key_of(x) > largest ? key_of(x) : largest; });
  if (largest > 0) atomicMax(&shared.top, largest);
  __syncthreads();
  const std::uint32_t top = shared.top;
  row.top = top > 0 ? unordered(top) : -kInfinity;

  std::uint32_t key = 0;
  if (top > 0 && cuts.top_k > 0) {
    key = row.template select<false>(shared, {kLowestKey, top},
                                     [&](std::uint64_t) { return static_cast<std::uint64_t>(cuts.top_k); });
  }
  if (top > 0 && cuts.by_mass()) {
    const std::uint32_t lowest = lowest_with_mass(row.top, row.scale);
    key = row.template select<true>(shared, {key > lowest ? key : lowest, top},
                                    [&](std::uint64_t total) { return wanted_mass(cuts.top_p, total); });
  }
  if (threadIdx.x != 0) return;
  const float floor = key > 0 ? unordered(key) : -kInfinity;
  const float least = top > 0 && cuts.min_p > 0 ? min_p_floor(cuts.min_p, row.top, cuts.temperature) : -kInfinity;
  call.floor[i] = least > floor ? least : floor;
}

}  // namespace

const char *truncation_floor_cuda(const TruncateCall &call, void *stream) {
  if (call.logits.rows == 0) return nullptr;
  const auto blocks = static_cast<unsigned>(call.logits.rows);
  with_element(call.logits.dtype, [&](auto element) {
    launch_kernel(truncate_kernel<decltype(element)>, blocks, kThreads, stream, call);
  });
  return launch_error();
}

}  // namespace weft
