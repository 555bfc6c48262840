// The rules of penalties, the same on every device: the arithmetic of one logit, and the tests for bad words and
// repeated n-grams.
#pragma once

#include "kernels/sampling/gumbel.h"
#include "kernels/sampling/penalties.h"

namespace weft {

// One row's parameters: its slot's settings, and its slot's rows of the tables.
struct PenaltyRow {
  float repetition, presence, frequency;
  bool penalizes;  // any of these three
  bool bias_first;
  std::int64_t ngram_size;
  const std::int32_t *counts, *bad_words, *history;
  const std::uint32_t *prompt;
  const float *bias;  // or null
  std::int64_t vocab, bad_width, history_width, history_length;
  const std::int64_t *extra;
  std::int64_t num_extra, extra_stride;

  WEFT_HD PenaltyRow(const PenalizeCall &call, std::int64_t i)
      : PenaltyRow(call.tables, call.slot[i], call.history_length[i], call.temperature[i]) {
    extra = call.extra + i * call.extra_width;
    num_extra = call.num_extra[i] < call.extra_width ? call.num_extra[i] : call.extra_width;
  }
  // A row without extra tokens.
  WEFT_HD PenaltyRow(const SlotTables &tables, std::int64_t slot, std::int64_t length, float temperature)
      : history_length(length), extra(nullptr), num_extra(0), extra_stride(1) {
    const SlotRecord &record = tables.records[slot];
    repetition = record.repetition_penalty;
    presence = record.presence_penalty, frequency = record.frequency_penalty;
    penalizes = repetition != 1 || presence != 0 || frequency != 0;
    bias_first = record.penalties_after_temperature != 0, ngram_size = record.no_repeat_ngram_size;
    if (bias_first && temperature >= kLowestTemperature) {
      // These penalties apply to logits divided by the temperature, but that division happens only in the draw. So
      // multiply the subtracted penalties by the temperature here. The repetition penalty is a factor, which commutes
      // with the division.
      presence = mul_rn(presence, temperature), frequency = mul_rn(frequency, temperature);
    }
    vocab = tables.vocab, bad_width = tables.bad_width, history_width = tables.history_width;
    counts = tables.counts + slot * vocab;
    prompt = tables.prompt + slot * ((vocab + 31) / 32);
    bias = record.bias_kind == BiasKind::kNone ? nullptr : tables.bias + slot * vocab;
    bad_words = tables.bad_words + slot * bad_width;
    history = tables.history + slot * history_width;
  }
};

// Penalizes the logit of a token that occurs in the text. `count` is its number of occurrences that count; 0 if only
// the prompt has it.
WEFT_HD float penalized(float x, std::int32_t count, const PenaltyRow &row) {
  const float repeated = x > 0 ? div_rn(x, row.repetition) : mul_rn(x, row.repetition);
  const float present = add_rn(repeated, -row.presence);
  const float counted = add_rn(present, -mul_rn(row.frequency, static_cast<float>(count)));
  return count > 0 ? counted : repeated;
}

// Adds a bias. -inf wins over +inf, so that the sum is never NaN.
WEFT_HD float biased(float x, float bias) {
  return x == -kInfinity || bias == -kInfinity ? -kInfinity : add_rn(x, bias);
}

// Applies bias and penalties to a logit, for a dtype whose largest number is `limit`. Finite inputs give a finite
// result.
WEFT_HD float changed(float x, std::int32_t count, bool in_text, float bias, const PenaltyRow &row, float limit) {
  const float before = row.bias_first ? biased(x, bias) : x;
  const float between = in_text ? penalized(before, count, row) : before;
  const float after = row.bias_first ? between : biased(between, bias);
  return is_finite(x) & is_finite(bias) ? clamped(after, limit) : after;
}

// Reads a row's context backwards: drafts, then history. Returns -1 before the beginning. If the history is longer than
// its buffer, it was not kept, and only drafts are read.
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

// Whether the context ends with all but the last token of a bad word. `at` is the place of that last token.
WEFT_HD bool is_complete_but_for(const PenaltyRow &row, std::int64_t at) {
  Backwards context(row);
  for (std::int64_t m = at - 1; m >= 0 && row.bad_words[m] >= 0; --m) {
    if (context.next() != row.bad_words[m]) return false;
  }
  return true;
}

// Random access to a row's context. It is empty if the history is longer than its buffer, because it was not kept then.
struct Text {
  const PenaltyRow &row;
  std::int64_t committed, length;

  WEFT_HD explicit Text(const PenaltyRow &of) : row(of), committed(of.history_length), length(0) {
    if (committed > row.history_width) return;
    if (committed < 0) committed = 0;
    length = committed;
    for (std::int64_t e = 0; e < row.num_extra; ++e) length += row.extra[e * row.extra_stride] >= 0;
  }
  WEFT_HD std::int64_t at(std::int64_t position) const {
    if (position < committed) return row.history[position];
    std::int64_t left = position - committed;
    for (std::int64_t e = 0;; ++e) {
      const std::int64_t token = row.extra[e * row.extra_stride];
      if (token >= 0 && left-- == 0) return token;
    }
  }
};

// The number of complete n-grams in a text.
WEFT_HD std::int64_t num_ngrams(const PenaltyRow &row, const Text &text) {
  return row.ngram_size > 0 && text.length >= row.ngram_size ? text.length - row.ngram_size + 1 : 0;
}

// Returns the last token of the n-gram at `start` if the text ends with the n-gram's other tokens, because the token
// would repeat the n-gram; else -1.
WEFT_HD std::int64_t repeating(const PenaltyRow &row, const Text &text, std::int64_t start) {
  const std::int64_t known = row.ngram_size - 1;
  for (std::int64_t m = 0; m < known; ++m) {
    if (text.at(start + m) != text.at(text.length - known + m)) return -1;
  }
  return text.at(start + known);
}

}  // namespace weft
