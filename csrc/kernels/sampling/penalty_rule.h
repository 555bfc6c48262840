// What one row asks of the penalties, one logit's arithmetic, and when a bad word is complete: the same on every
// device.
#pragma once

#include "kernels/floats.h"
#include "kernels/sampling/penalties.h"

namespace weft {

// Row i of a call, with its slot's tables.
struct PenaltyRow {
  float repetition, presence, frequency;
  bool penalizes;  // some of these three
  const std::int32_t *counts, *bad_words, *history;
  const std::uint32_t *prompt;
  const float *bias;  // or null
  std::int64_t vocab, bad_width, history_width, history_length;
  const std::int64_t *extra;
  std::int64_t num_extra, extra_stride;

  WEFT_HD PenaltyRow(const PenalizeCall &call, std::int64_t i)
      : PenaltyRow(call.tables, call.slot[i], call.history_length[i]) {
    extra = call.extra + i * call.extra_width;
    num_extra = call.num_extra[i] < call.extra_width ? call.num_extra[i] : call.extra_width;
  }
  // Without extra tokens.
  WEFT_HD PenaltyRow(const PenaltyTables &tables, std::int64_t slot, std::int64_t length)
      : history_length(length), extra(nullptr), num_extra(0), extra_stride(1) {
    repetition = tables.repetition[slot], presence = tables.presence[slot], frequency = tables.frequency[slot];
    penalizes = repetition != 1 || presence != 0 || frequency != 0;
    vocab = tables.vocab, bad_width = tables.bad_width, history_width = tables.history_width;
    counts = tables.counts + slot * vocab;
    prompt = tables.prompt + slot * ((vocab + 31) / 32);
    bias = tables.biased[slot] ? tables.bias + slot * vocab : nullptr;
    bad_words = tables.bad_words + slot * bad_width;
    history = tables.history + slot * history_width;
  }
};

WEFT_HD bool is_active(const PenaltyTables &tables, std::int64_t slot) {
  return slot >= 0 && slot < tables.slots && tables.active[slot] != 0;
}

// The logit of a token that stands `count` times in the output; if not there, then in the prompt.
WEFT_HD float penalized(float x, std::int32_t count, const PenaltyRow &row) {
  const float left = x > 0 ? div_rn(x, row.repetition) : mul_rn(x, row.repetition);
  const float once = add_rn(left, -row.presence);
  const float often = add_rn(once, -mul_rn(row.frequency, static_cast<float>(count)));
  return count > 0 ? often : left;
}

// -inf wins over +inf, so that no NaN comes about.
WEFT_HD float biased(float x, float bias) {
  return x == -kInfinity || bias == -kInfinity ? -kInfinity : add_rn(x, bias);
}

// Reads a row's context from its end; -1 before the beginning, or where the history does not reach.
struct Backwards {
  const PenaltyRow &row;
  std::int64_t drafted, committed;

  WEFT_HD explicit Backwards(const PenaltyRow &of) : row(of), drafted(of.num_extra), committed(of.history_length) {}
  WEFT_HD std::int64_t next() {
    while (drafted > 0) {
      const std::int64_t token = row.extra[--drafted * row.extra_stride];
      if (token >= 0) return token;
    }
    if (committed <= 0 || committed > row.history_width) return -1;
    return row.history[--committed];
  }
};

WEFT_HD bool ends_bad_word(const PenaltyRow &row, std::int64_t at) {
  return row.bad_words[at] >= 0 && (at + 1 == row.bad_width || row.bad_words[at + 1] < 0);
}

// Whether the tokens before `at`, the place of a bad word's last token, are those that the context ends with.
WEFT_HD bool is_complete_but_for(const PenaltyRow &row, std::int64_t at) {
  Backwards context(row);
  for (std::int64_t m = at - 1; m >= 0 && row.bad_words[m] >= 0; --m) {
    if (context.next() != row.bad_words[m]) return false;
  }
  return true;
}

}  // namespace weft
