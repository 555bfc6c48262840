#include "kernels/sampling/penalties.h"

#include "kernels/columns.h"
#include "kernels/sampling/penalty_rule.h"

namespace weft {
namespace {

// A row's table entries for the columns of one block. Tables that the row does not use are all 0.
struct BlockTables {
  std::int32_t count[kBlock] = {};
  std::uint32_t in_prompt[kBlock] = {};
  float bias[kBlock] = {};
};

// Reads the tables if there is no d2t map, so that column c is token c.
WEFT_INLINE void read_in_order(const PenaltyRow &row, std::int64_t first, int n, BlockTables &tables) {
  if (row.penalizes) {
    for (int j = 0; j < n; ++j) tables.count[j] = row.counts[first + j];
    for (int j = 0; j < n; ++j) tables.in_prompt[j] = row.prompt[first / 32 + j / 32] >> (j % 32) & 1u;
    for (std::int64_t e = 0; e < row.num_extra; ++e) {
      const std::int64_t j = row.extra[e] - first;
      if (j >= 0 && j < n) ++tables.count[j];
    }
  }
  if (row.bias) {
    for (int j = 0; j < n; ++j) tables.bias[j] = row.bias[first + j];
  }
}

WEFT_INLINE void read_by_target(const PenaltyRow &row, const std::int64_t *d2t, std::int64_t first, int n,
                                BlockTables &tables) {
  for (int j = 0; j < n; ++j) {
    const std::int64_t token = first + j + d2t[first + j];
    const bool known = token >= 0 && token < row.vocab;
    if (row.penalizes) {
      tables.count[j] = known ? row.counts[token] : 0;
      tables.in_prompt[j] = known ? row.prompt[token / 32] >> (token % 32) & 1u : 0;
      for (std::int64_t e = 0; e < row.num_extra; ++e) tables.count[j] += known && row.extra[e] == token;
    }
    if (row.bias) tables.bias[j] = known ? row.bias[token] : 0;
  }
}

template <class T>
WEFT_INLINE void change_block(const PenaltyRow &row, const BlockTables &tables, T *logits, int n) {
  std::uint32_t changes[kBlock], any = 0;
  for (int j = 0; j < n; ++j) {
    changes[j] = (tables.count[j] > 0) | tables.in_prompt[j] | (tables.bias[j] != 0);
    any |= changes[j];
  }
  if (!any) return;
  for (int j = 0; j < n; ++j) {
    const bool in_text = (tables.count[j] > 0) | tables.in_prompt[j];
    T out;
    narrow(changed(widen(logits[j]), tables.count[j], in_text, tables.bias[j], row, largest(T{})), out);
    logits[j] = changes[j] ? out : logits[j];
  }
}

template <class T>
WEFT_INLINE void change_columns(const PenaltyRow &row, const PenalizeCall &call, T *logits) {
  const std::int64_t *d2t = call.d2t;
  const std::int64_t columns = d2t || call.logits.vocab < row.vocab ? call.logits.vocab : row.vocab;
  BlockTables tables;
  for (std::int64_t first = 0; first < columns; first += kBlock) {
    const int n = block_columns(first, columns);
    if (d2t) {
      read_by_target(row, d2t, first, n, tables);
    } else if (n == kBlock) {
      read_in_order(row, first, kBlock, tables);  // a constant size makes this vector code
    } else {
      read_in_order(row, first, n, tables);
    }
    if (n == kBlock) {
      change_block(row, tables, logits + first, kBlock);
    } else {
      change_block(row, tables, logits + first, n);
    }
  }
}

template <class T>
WEFT_INLINE void block_token(const PenalizeCall &call, T *logits, std::int64_t token, T neg_inf) {
  const std::int64_t vocab = call.logits.vocab;
  if (!call.d2t) {
    if (token < vocab) logits[token] = neg_inf;
    return;
  }
  for (std::int64_t c = 0; c < vocab; ++c) {
    if (c + call.d2t[c] == token) logits[c] = neg_inf;
  }
}

template <class T>
WEFT_INLINE void block_bad_words(const PenaltyRow &row, const PenalizeCall &call, T *logits) {
  T neg_inf;
  narrow(-kInfinity, neg_inf);
  for (std::int64_t at = 0; at < row.bad_width; ++at) {
    const bool starts = at == 0 || row.bad_words[at - 1] < 0;
    if (starts && row.bad_words[at] < 0) return;
    if (ends_bad_word(row, at) && is_complete_but_for(row, at)) block_token(call, logits, row.bad_words[at], neg_inf);
  }
}

template <class T>
WEFT_INLINE void block_repeats(const PenaltyRow &row, const PenalizeCall &call, T *logits) {
  T neg_inf;
  narrow(-kInfinity, neg_inf);
  const Text text(row);
  const std::int64_t count = num_ngrams(row, text);
  for (std::int64_t start = 0; start < count; ++start) {
    const std::int64_t token = repeating(row, text, start);
    if (token >= 0) block_token(call, logits, token, neg_inf);
  }
}

template <class T>
WEFT_INLINE void penalize_rows(const PenalizeCall &call, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    if (!call.tables.changes_logits(call.slot[i])) continue;
    const PenaltyRow row(call, i);
    T *logits = row_of<T>(call, i);
    if (row.penalizes || row.bias) change_columns(row, call, logits);
    block_bad_words(row, call, logits);
    if (row.ngram_size > 0) block_repeats(row, call, logits);
  }
}

WEFT_BY_INSTRUCTION_SET(penalize, PenalizeCall)

template <class T>
WEFT_INLINE void level_rows(const LevelCall &call, std::int64_t begin, std::int64_t end) {
  const std::int64_t vocab = call.logits.vocab;
  for (std::int64_t i = begin; i < end; ++i) {
    if (!call.tables.levels(call.slot[i])) continue;
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

void penalize_cpu(const PenalizeCall &call, int threads) {
  static const auto rows = best_penalize_rows();
  for_logits(call, threads, rows);
}

void level_cpu(const LevelCall &call, int threads) {
  static const auto rows = best_level_rows();
  for_logits(call, threads, rows);
}

}  // namespace weft
