// Commits the tokens of iterations to answers, with the rules for an answer's end as data. Python-free.
//
// Nearly every iteration ends no answer. `take` recognizes such an iteration and moves the answer on. It leaves all
// other cases to the caller, and changes nothing then: the answer may end, a token could not be sampled, or the matcher
// has failed or edits the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "guided/state.h"
#include "matcher/forced_text.h"
#include "support/word_automaton.h"

namespace weft {

// The rules for the end of an answer.
struct EndRules {
  std::int64_t max_tokens = 0;
  std::vector<std::int32_t> ends;                    // end tokens and stop tokens
  std::shared_ptr<const WordAutomaton> token_words;  // stop words that are token ids; may be null
  std::shared_ptr<const WordAutomaton> text_words;   // stop words that are texts; may be null
  std::shared_ptr<const TokenTexts> texts;           // needed for `text_words`
};

class Answers {
 public:
  // `state` outlives the answers.
  explicit Answers(const GuidedState &state);

  // Sets a slot's answer: its rules and its tokens so far. A guided answer's matcher was attached after the first
  // `resumed_at` tokens. Throws std::out_of_range for a slot that does not exist, and std::invalid_argument for words
  // of texts without texts.
  void open(int slot, EndRules rules, bool is_guided, std::int64_t resumed_at, const std::vector<std::int32_t> &tokens);

  // Adds an iteration's tokens to the slot's answer: those of `row`, which holds the number of accepted drafts and then
  // the tokens. Returns the number of tokens added. Returns 0 and changes nothing if the caller must decide. With
  // `has_later`, a later iteration of the slot is in flight, whose tokens the matcher may have taken already.
  int take(int slot, const std::int64_t *row, bool has_later);

  int num_slots() const { return static_cast<int>(answers_.size()); }
  // The number of values in a row: the count, then K+1 tokens.
  std::size_t row_width() const { return static_cast<std::size_t>(max_drafts_) + 2; }

 private:
  struct Answer {
    EndRules rules;
    bool is_guided = false;
    std::int64_t resumed_at = 0, num_tokens = 0;
    std::int32_t token_state = 0, text_state = 0;  // of the automata
  };

  // Moves the automata over tokens. Returns false at a word, and at a token without text if there are words of texts:
  // the tokenizer may still write something for it.
  static bool follow(Answer &answer, const std::int64_t *tokens, int count);

  const GuidedState &state_;
  const int max_drafts_;
  std::vector<Answer> answers_;  // [S]
};

}  // namespace weft
