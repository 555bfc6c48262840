// Loops over rows of logits in CPU kernels. They work on blocks of columns, widened to float32, and are compiled for
// several instruction sets.
#pragma once

#include <cstdint>

#include "kernels/floats.h"
#include "kernels/logits.h"
#include "support/instruction_set.h"
#include "support/kernel_threads.h"

namespace weft {

constexpr int kBlock = 64;  // columns of a block
constexpr std::int64_t kCostOfLogit = 20;

// Calls rows(call, begin, end) for ranges that cover all rows of the call's logits. Uses up to `threads` threads if
// there is enough work.
template <class Call>
void for_logits(const Call &call, int threads, void (*rows)(const Call &, std::int64_t, std::int64_t)) {
  for_rows(call.logits.rows, threads, call.logits.vocab * kCostOfLogit,
           [&](std::int64_t begin, std::int64_t end) { rows(call, begin, end); });
}

constexpr std::int64_t num_blocks(std::int64_t vocab) { return (vocab + kBlock - 1) / kBlock; }

WEFT_INLINE int block_columns(std::int64_t first, std::int64_t vocab) {
  return vocab - first < kBlock ? static_cast<int>(vocab - first) : kBlock;
}

// Loads columns first .. first + kBlock - 1 of a row into `x`. Columns beyond the vocabulary are -inf.
template <class T>
WEFT_INLINE void load_block(const T *logits, std::int64_t first, std::int64_t vocab, float *x) {
  const int count = block_columns(first, vocab);
  if (count == kBlock) {
    for (int j = 0; j < kBlock; ++j) x[j] = widen(logits[first + j]);
  } else {
    for (int j = 0; j < kBlock; ++j) x[j] = j < count ? widen(logits[first + j]) : -kInfinity;
  }
}

// Returns the maximum of a block, ignoring NaN. The compiler vectorises sixteen running maxima without any fast-math
// option.
WEFT_INLINE float block_max(const float *x) {
  float lane[16];
  for (int j = 0; j < 16; ++j) lane[j] = x[j] > -kInfinity ? x[j] : -kInfinity;
  for (int base = 16; base < kBlock; base += 16) {
    for (int j = 0; j < 16; ++j) lane[j] = x[base + j] > lane[j] ? x[base + j] : lane[j];
  }
  for (int half = 8; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) lane[j] = lane[j + half] > lane[j] ? lane[j + half] : lane[j];
  }
  return lane[0];
}

template <class T, class Call>
WEFT_INLINE T *row_of(const Call &call, std::int64_t i) {
  return static_cast<T *>(call.logits.data) + i * call.logits.stride;
}

}  // namespace weft

// Takes a WEFT_INLINE template name_rows<T>(call, begin, end). Defines name_plain, and on x86-64 name_avx2 and
// name_avx512, which select T by the dtype of the call's logits. Defines best_name_rows(), which returns the one for
// `instruction_set()`.
#define WEFT_ROWS_OF(name, Call)                                                        \
  WEFT_INLINE void name##_any(const Call &call, std::int64_t begin, std::int64_t end) { \
    switch (call.logits.dtype) {                                                        \
      case DType::kFloat32:                                                             \
        name##_rows<float>(call, begin, end);                                           \
        break;                                                                          \
      case DType::kFloat16:                                                             \
        name##_rows<Half>(call, begin, end);                                            \
        break;                                                                          \
      case DType::kBFloat16:                                                            \
        name##_rows<BFloat16>(call, begin, end);                                        \
        break;                                                                          \
    }                                                                                   \
  }                                                                                     \
  void name##_plain(const Call &call, std::int64_t begin, std::int64_t end) { name##_any(call, begin, end); }

#if defined(__x86_64__)
#define WEFT_BY_INSTRUCTION_SET(name, Call)                                                                  \
  WEFT_ROWS_OF(name, Call)                                                                                   \
  __attribute__((target("avx2"))) void name##_avx2(const Call &call, std::int64_t begin, std::int64_t end) { \
    name##_any(call, begin, end);                                                                            \
  }                                                                                                          \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512"))) void name##_avx512(  \
      const Call &call, std::int64_t begin, std::int64_t end) {                                              \
    name##_any(call, begin, end);                                                                            \
  }                                                                                                          \
  auto best_##name##_rows() {                                                                                \
    if (instruction_set() == InstructionSet::kAvx512) return name##_avx512;                                  \
    return instruction_set() == InstructionSet::kAvx2 ? name##_avx2 : name##_plain;                          \
  }
#else
#define WEFT_BY_INSTRUCTION_SET(name, Call) \
  WEFT_ROWS_OF(name, Call)                  \
  auto best_##name##_rows() { return name##_plain; }
#endif
