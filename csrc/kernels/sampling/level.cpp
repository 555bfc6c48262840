#include "kernels/sampling/level.h"

#include "kernels/columns.h"
#include "kernels/sampling/penalty_rule.h"

namespace weft {
namespace {

template <class T>
WEFT_INLINE void level_rows(const LevelCall &call, std::int64_t begin, std::int64_t end) {
  const std::int64_t vocab = call.logits.vocab;
  for (std::int64_t i = begin; i < end; ++i) {
    if (!is_wide(call.tables, call.slot[i])) continue;
    T *logits = row_of<T>(call, i);
    float top = -kInfinity, x[kBlock];
    for (std::int64_t first = 0; first < vocab; first += kBlock) {
      load_block(logits, first, vocab, x);
      const float largest_of_block = block_max(x);
      top = largest_of_block > top ? largest_of_block : top;
    }
    if (!is_finite(top)) continue;
    top = add_rn(top, 0.0f);  // -0 is 0
    for (std::int64_t c = 0; c < vocab; ++c) {
      const float value = widen(logits[c]);
      if (is_finite(value)) narrow(clamped(add_rn(value, -top), largest(T{})), logits[c]);
    }
  }
}

WEFT_BY_INSTRUCTION_SET(level, LevelCall)

}  // namespace

void level_cpu(const LevelCall &call, int threads) {
  static const auto rows = best_level_rows();
  for_logits(call, threads, rows);
}

}  // namespace weft
