#include "kernels/sampling/sampling.h"

#include "kernels/columns.h"
#include "kernels/sampling/sample_rule.h"

namespace weft {
namespace {

struct Best {
  float value = -kInfinity;
  std::int64_t token = -1;

  WEFT_INLINE void offer(float candidate, std::int64_t id) {  // a NaN is never larger
    if (candidate > value || (candidate == value && candidate > -kInfinity && id < token)) {
      value = candidate;
      token = id;
    }
  }
};

// Computes the random words of tokens first .. first + kBlock - 1. `first` is a multiple of 4.
WEFT_INLINE void words_in_order(const RowDraw &row, std::uint32_t first, std::uint32_t *words) {
  for (int j = 0; j < kBlock / 4; ++j) {
    const PhiloxWords four = row.words(first / 4 + static_cast<unsigned>(j));
    for (int k = 0; k < 4; ++k) words[4 * j + k] = four.word[k];
  }
}

// Samples one block of a row. Tokens whose noise bound is too low are skipped; the bounds are monotone under rounding,
// so no token that could win is among them.
template <bool kTarget>
WEFT_INLINE void sample_block(const RowDraw &row, const float *x, std::int64_t first, const std::int64_t *d2t,
                              int count, Best &best) {
  const float top = block_max(x);
  if (row.greedy) {
    if (top < best.value || top == -kInfinity) return;
    for (int j = 0; j < count; ++j) {
      if (x[j] == top) best.offer(top, first + j + (kTarget ? d2t[j] : 0));
    }
    return;
  }
  if (top == -kInfinity || top / row.temperature + kLargestNoise < best.value) return;
  std::uint32_t words[kBlock];
  if constexpr (kTarget) {
    std::uint32_t tokens[kBlock] = {};
    for (int j = 0; j < count; ++j) tokens[j] = static_cast<std::uint32_t>(first + j + d2t[j]);
    for (int j = 0; j < kBlock; ++j) words[j] = row.word(tokens[j]);
  } else {
    words_in_order(row, static_cast<std::uint32_t>(first), words);
  }
  float scaled[kBlock], bound[kBlock];
  for (int j = 0; j < kBlock; ++j) {
    scaled[j] = x[j] / row.temperature;
    bound[j] = scaled[j] + gumbel_bound(words[j]);
  }
  if (block_max(bound) < best.value) return;
  for (int j = 0; j < count; ++j) {
    if (bound[j] >= best.value) best.offer(scaled[j] + gumbel(words[j]), first + j + (kTarget ? d2t[j] : 0));
  }
}

template <class T, bool kTarget>
WEFT_INLINE std::int64_t sample_row(const RowDraw &row, const T *logits, std::int64_t vocab, const std::int64_t *d2t) {
  Best best;
  float x[kBlock];
  for (std::int64_t first = 0; first < vocab; first += kBlock) {
    load_block(logits, first, vocab, x);
    if (row.floor > -kInfinity) {
      for (int j = 0; j < kBlock; ++j) x[j] = x[j] < row.floor ? -kInfinity : x[j];
    }
    sample_block<kTarget>(row, x, first, kTarget ? d2t + first : nullptr, block_columns(first, vocab), best);
  }
  return best.token;
}

template <class T>
WEFT_INLINE void sample_rows(const SampleCall &call, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    const RowDraw &row = call.draws[i];
    if (row.is_skipped) {
      call.out[i] = -1;
      continue;
    }
    const T *logits = row_of<const T>(call, i);
    call.out[i] = call.d2t ? sample_row<T, true>(row, logits, call.logits.vocab, call.d2t)
                           : sample_row<T, false>(row, logits, call.logits.vocab, nullptr);
  }
}

WEFT_BY_INSTRUCTION_SET(sample, SampleCall)

}  // namespace

void sample_cpu(const SampleCall &call, int threads) {
  static const auto rows = best_sample_rows();
  for_logits(call, threads, rows);
}

}  // namespace weft
