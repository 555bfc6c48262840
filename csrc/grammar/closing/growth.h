// How much each token can add to what it costs to end, wherever in the grammar it is taken. Python-free.
//
// When a reading takes a token, its cost grows by choices alone: an alternative that is not the cheapest, one more
// time of a rule, a byte that breaks up literal text. What a rule returns to costs the same for every caller, so that
// a bound over all places, with returns to any caller, holds for each reading.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "grammar/closing/grammar.h"

namespace weft {

class ClosingGrowth {
 public:
  // Throws std::invalid_argument where that takes too long to find out.
  ClosingGrowth(const ClosingGrammar &grammar, int vocab_size, const std::vector<std::int32_t> &end_tokens);

  // It is kNever of a token that no text of the grammar holds.
  int growth(std::int32_t token) const { return growth_[static_cast<std::size_t>(token)]; }
  // The growth of the token that adds most, of those that may occur; kNever where one may lead to what has no end.
  int most() const { return most_; }

  // The mask of the tokens that add at most `growth`, and of the end tokens: int32 [words].
  const std::int32_t *mask(int growth) const;
  int words() const { return words_; }
  int vocab_size() const { return vocab_size_; }
  bool is_end(std::int32_t token) const;
  std::int32_t first_end() const { return end_tokens_.front(); }

  std::size_t num_bytes() const;

 private:
  void find(const ClosingGrammar &grammar);
  void fill_masks();

  int vocab_size_, words_;
  std::vector<std::int32_t> end_tokens_;
  int most_ = -ClosingGrammar::kNever;
  std::vector<int> growth_;
  std::vector<int> levels_;          // ascending
  std::vector<std::int32_t> masks_;  // [levels + 1, words]; the first holds the end tokens alone
};

}  // namespace weft
