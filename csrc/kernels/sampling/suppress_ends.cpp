#include "kernels/sampling/suppress_ends.h"

#include <algorithm>

#include "kernels/columns.h"

namespace weft {
namespace {

// Whether any token other than an end token may be drawn. Stops at the first one.
template <class T>
WEFT_INLINE bool has_another(const T *logits, std::int64_t vocab, const std::int32_t *ends, std::int64_t width) {
  float x[kBlock];
  for (std::int64_t first = 0; first < vocab; first += kBlock) {
    load_block(logits, first, vocab, x);
    if (block_max(x) == -kInfinity) continue;
    for (int j = 0; j < block_columns(first, vocab); ++j) {
      if (x[j] > -kInfinity && std::find(ends, ends + width, first + j) == ends + width) return true;
    }
  }
  return false;
}

template <class T>
WEFT_INLINE void suppress_rows(const SuppressCall &call, std::int64_t begin, std::int64_t end) {
  const std::int64_t vocab = call.logits.vocab;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int32_t *ends = call.ends_of(i);
    T *logits = row_of<T>(call, i);
    if (!ends || !has_another(logits, vocab, ends, call.tables.ends_width)) continue;
    for (std::int64_t e = 0; e < call.tables.ends_width; ++e) {
      if (ends[e] >= 0 && ends[e] < vocab) narrow(-kInfinity, logits[ends[e]]);
    }
  }
}

WEFT_BY_INSTRUCTION_SET(suppress, SuppressCall)

}  // namespace

void suppress_ends_cpu(const SuppressCall &call, int threads) {
  static const auto rows = best_suppress_rows();
  for_logits(call, threads, rows);
}

}  // namespace weft
