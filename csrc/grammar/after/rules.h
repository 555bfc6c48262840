// Free text before a guide. The guide begins after a trigger, which is a token or a text (in the bytes of the tokens).
//
// A trigger text may end inside a token. Such a token is allowed only if the guide accepts the rest of its bytes,
// spelled as tokens. Each distinct rest is checked once. Python-free.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "matcher/forced_text.h"
#include "matcher/handle.h"

namespace weft {

// Immutable after `settle`, so any number of matchers and threads share one.
class AfterRules {
 public:
  static constexpr int kMaxTriggerBytes = TokenTexts::kMaxBytes;

  // The trigger is `token`. Free text consists of tokens with bytes; `texts` has none for other tokens.
  AfterRules(std::shared_ptr<const TokenTexts> texts, int vocab_size, std::int32_t token);
  // The trigger is a text of 1 to kMaxTriggerBytes bytes.
  AfterRules(std::shared_ptr<const TokenTexts> texts, int vocab_size, std::string trigger);

  // Finds the tokens in which the trigger may end: `guide`, a matcher at its start, must accept the bytes after it. The
  // matcher's state does not change. Returns "" or the matcher's error.
  std::string settle(MatcherHandle &guide);

  // can_end: whether any token can complete the trigger. can_be_forced: whether the missing part of the trigger can be
  // spelled exactly from every state. Call them after `settle`.
  bool can_end() const;
  bool can_be_forced() const;

  // The effect of a token. A state is the number of the trigger's first bytes that the text ends with.
  struct Step {
    int state = -1;  // -1: the token is not allowed
    const std::vector<std::int32_t> *beginning =
        nullptr;  // not null: the trigger is complete, and the guide starts with these tokens
  };
  // Returns the effect of `token`. With `is_forced`, only tokens are allowed with which the missing part of the
  // trigger can still be spelled.
  Step step(int state, std::int32_t token, bool is_forced) const;
  // Writes the mask of the tokens that `step` allows to `row`, which has words() words.
  void fill(int state, bool is_forced, std::int32_t *row) const;
  // Return the trigger token (-1 if the trigger is a text), and the part of a trigger text that is missing in a state.
  std::int32_t token() const { return token_; }
  std::string_view missing(int state) const {
    return std::string_view(trigger_).substr(static_cast<std::size_t>(state));
  }

  int vocab_size() const { return vocab_size_; }
  int words() const { return (vocab_size_ + 31) / 32; }
  const TokenTexts &texts() const { return *texts_; }
  std::size_t memory_bytes() const;

 private:
  struct Completion {
    std::int32_t token;
    int rest;  // an index of `rests_`
  };
  struct Rest {
    std::string text;
    std::vector<std::int32_t> tokens;
    bool is_taken = false;
  };

  int next(int state, unsigned char byte) const;
  void find_completions();
  void find_spellings();
  int rest_of(const std::string &text);
  const Completion *completion(int state, std::int32_t token) const;

  const std::shared_ptr<const TokenTexts> texts_;
  const int vocab_size_;
  const std::int32_t token_ = -1;
  const std::string trigger_;
  std::vector<int> fallback_;                         // [bytes] by state: the next shorter prefix at its end
  std::vector<std::int32_t> free_row_;                // [W]
  std::vector<std::vector<Completion>> completions_;  // by state, sorted by token
  std::vector<std::vector<std::int32_t>>
      spellings_;  // by state, sorted: the tokens that may be taken while the trigger is forced
  std::vector<Rest> rests_;
  std::map<std::string, int> rest_numbers_;
};

// Makes a matcher for free text under `rules`, followed by text that `guide` accepts. `guide` must be at its start, and
// nothing else may use it. After `max_free_tokens` tokens (negative: no limit) the trigger is forced.
weft_matcher after_matcher(std::shared_ptr<const AfterRules> rules, MatcherRef guide, int max_free_tokens);

// Returns the inner matcher of an `after_matcher`, or nothing for any other matcher. `num_tokens` is a number of tokens
// of the whole text; it becomes the number of those that the inner matcher received. Callable at any time, on any
// thread.
std::optional<weft_matcher> guide_after(const weft_matcher &matcher, std::int64_t &num_tokens);

}  // namespace weft
