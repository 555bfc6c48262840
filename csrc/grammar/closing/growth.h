// For each token, the largest number of tokens that it can add to the shortest end, at any place in the grammar.
// Python-free.
//
// The matcher has `left` tokens, and its costliest reading needs `dearest` of them to an end. It allows a token whose
// growth is at most left - 2 - dearest, and besides it only the next token of an end that it knows. After the token
// every reading needs at most left - 2 of the left - 1 tokens that remain, so an end and the end token fit.
//
// When a reading accepts a token, its cost changes in two ways only:
//   - A byte leads to the next place. The cost becomes that of the rest: mostly one token less, but the same or more if
//     the byte splits a token's text.
//   - Entering a rule may choose an alternative that is not the cheapest. It may also begin a repetition that the cost
//     did not count, because enough repetitions are done.
// Leaving a rule changes nothing: the return address adds the same cost before and after. So the analysis needs no
// return addresses. It begins at every place, returns to every caller, and takes the largest growth. That follows every
// reading, and ways that no reading goes, so the growth is a bound for all readings.
//
// Example, with the tokens "a", "b", "c", "d", "cd" and "bc":
//
//   root ::= "a" item{1,2}         the cost of each place:  2 "a" 1 item{1,2} 0
//   item ::= "b" | "cd"                                     1 "b" 0  and  1 "c" 1 "d" 0; an item costs 1
//
//   token  worst place                      cost before and after      growth
//   "a"    the beginning                    2, "a" 1                   -1
//   "b"    after an item: the second item   "ab" 0, "abb" 0            0, but -1 for the first item: "a" 1, "ab" 0
//   "cd"   the same                         "ab" 0, "abcd" 0           0
//   "c"    the same, and it splits "cd"     "ab" 0, "abc" 1            1
//   "d"    after "c"                        "ac" 1, "acd" 0            -1
//   "bc"   the walk does not count items,   0, 1 for the "d"           1, but no text has three items: at most 0,
//          so "b" is the second, "c" the                               as for "a" 1, "abc" 1
//          third
//
// tests/cpp/grammar/test_closing.cpp checks these numbers.
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

  // The growth of a token; a large one is rounded up. kNever if no text of the grammar contains the token, or if it may
  // lead to a place without a known end.
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
