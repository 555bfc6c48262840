// What one row asks of the penalties, one logit's arithmetic, and when a bad word or an n-gram is complete: the same on
// every device.
#pragma once

#include "kernels/sampling/gumbel.h"
#include "kernels/sampling/penalties.h"

namespace weft {

// Row i of a call, with its slot's tables.
struct PenaltyRow {
  float repetition, presence, frequency;
  bool penalizes;  // some of these three
  bool bias_first;
  std::int64_t no_repeat;
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
  // Without extra tokens.
  WEFT_HD PenaltyRow(const PenaltyTables &tables, std::int64_t slot, std::int64_t length, float temperature)
      : history_length(length), extra(nullptr), num_extra(0), extra_stride(1) {
    repetition = tables.repetition[slot], presence = tables.presence[slot], frequency = tables.frequency[slot];
    penalizes = repetition != 1 || presence != 0 || frequency != 0;
    bias_first = tables.after_temperature[slot] != 0, no_repeat = tables.no_repeat[slot];
    if (bias_first && temperature >= kLowestTemperature) {
      // What is taken from logits / temperature is taken from the logits so many times; repetition is the same.
      presence = mul_rn(presence, temperature), frequency = mul_rn(frequency, temperature);
    }
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

// Whether a slot's logits are to be levelled.
WEFT_HD bool is_wide(const PenaltyTables &tables, std::int64_t slot) {
  return is_active(tables, slot) && tables.biased[slot] == kWideBias;
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

// A logit after all that a request asks for, to be written as a number that is `most` at most: what is finite stays so.
WEFT_HD float changed(float x, std::int32_t count, bool repeated, float bias, const PenaltyRow &row, float most) {
  const float before = row.bias_first ? biased(x, bias) : x;
  const float between = repeated ? penalized(before, count, row) : before;
  const float after = row.bias_first ? between : biased(between, bias);
  return is_finite(x) & is_finite(bias) ? clamped(after, most) : after;
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

// A row's context by position. Where the history does not reach it is empty.
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

// How many places of a text begin an n-gram that is whole.
WEFT_HD std::int64_t num_ngrams(const PenaltyRow &row, const Text &text) {
  return row.no_repeat > 0 && text.length >= row.no_repeat ? text.length - row.no_repeat + 1 : 0;
}

// The token that would make the text end with the n-gram that begins at `start`; -1 where it does not end with its
// beginning.
WEFT_HD std::int64_t repeating(const PenaltyRow &row, const Text &text, std::int64_t start) {
  const std::int64_t known = row.no_repeat - 1;
  for (std::int64_t m = 0; m < known; ++m) {
    if (text.at(start + m) != text.at(text.length - known + m)) return -1;
  }
  return text.at(start + known);
}

}  // namespace weft
