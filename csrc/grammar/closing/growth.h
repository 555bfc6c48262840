// For each token, the largest number of tokens that it can add to the shortest end, at any place in the grammar.
// Python-free.
//
// When a reading accepts a token, its cost grows only by choices: an alternative that is not the cheapest, one more
// repetition of a rule, or a byte that splits literal text. The return address of a rule adds the same cost before
// and after the token. So a bound over all places, with returns to any caller, holds for every reading.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "grammar/closing/grammar.h"

namespace weft {

class ClosingGrowth {
 public:
  // Throws std::invalid_argument if the analysis would take too long.
  ClosingGrowth(const ClosingGrammar &grammar, int vocab_size, const std::vector<std::int32_t> &end_tokens);

  // The growth of a token; kNever if no text of the grammar contains it.
  int growth(std::int32_t token) const { return growth_[static_cast<std::size_t>(token)]; }
  // The greatest growth of all tokens that the grammar contains; kNever if a token may lead to a place without a known
  // end.
  int greatest() const { return greatest_; }

  // A mask, int32 [words], that allows the end tokens and the tokens that add at most `growth`.
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
  int greatest_ = -ClosingGrammar::kNever;
  std::vector<int> growth_;
  std::vector<int> levels_;          // ascending
  std::vector<std::int32_t> masks_;  // [levels + 1, words]; the first allows the end tokens alone
};

}  // namespace weft
