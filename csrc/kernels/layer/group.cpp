#include "kernels/layer/group.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/vector_exp.h"
#include "support/instruction_set.h"

namespace weft {
namespace {

// A lambda that is compiled for the instruction set of its caller.
#define WEFT_INLINE_LAMBDA __attribute__((always_inline))

constexpr std::int64_t kQueryTile = 4;  // queries at once
// Keys and values are prefetched this many tokens ahead. The processor does not do it by itself: pages are not in
// order, and a head reads only a short part of each token.
constexpr std::int64_t kKeysAhead = 2 * kKeyTile, kValuesAhead = 16;

template <int kLanes>
struct Vector {
  typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));
  typedef int Places __attribute__((vector_size(kLanes * sizeof(int))));
  typedef std::uint32_t Bits __attribute__((vector_size(kLanes * sizeof(std::uint32_t))));
  typedef std::uint16_t Shorts __attribute__((vector_size(kLanes * sizeof(std::uint16_t))));
  typedef std::uint8_t Bytes __attribute__((vector_size(kLanes)));
};
template <int kLanes>
using Lanes = typename Vector<kLanes>::Lanes;
template <int kLanes>
using Bits = typename Vector<kLanes>::Bits;

using Attend = void (*)(const Group &);

// Attention for one instruction set, by type.
struct Kernels {
  Attend float32, float16, bfloat16, float8, int8;

  Attend of(CachedType type) const {
    switch (type) {
      case CachedType::kFloat32:
        return float32;
      case CachedType::kFloat16:
        return float16;
      case CachedType::kBFloat16:
        return bfloat16;
      case CachedType::kFloat8:
        return float8;
      default:
        return int8;
    }
  }
};

#define WEFT_INNER_LOOPS "kernels/layer/group_kernels.h"
#include "kernels/layer/each_target.h"

const Kernels &best_kernels() {
#if defined(WEFT_HAS_TARGETS)
  if (instruction_set() == InstructionSet::kAvx512) return avx512::kKernels;
  if (instruction_set() == InstructionSet::kAvx2) return avx2::kKernels;
#endif
  return plain::kKernels;
}

}  // namespace

void attend_group(const Group &group) {
  static const Kernels &best = best_kernels();
  best.of(group.type)(group);
}

}  // namespace weft
