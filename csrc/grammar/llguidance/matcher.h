// LLGuidance's matchers, called without Python through the C interface that its wheel exports.
#pragma once

#include <weft/matcher.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "grammar/llguidance/library.h"
#include "matcher/forced_text.h"

namespace weft {

// The exception for a grammar or a vocabulary that LLGuidance refused, with LLGuidance's text.
struct LlguidanceRefusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// LLGuidance's view of a vocabulary. Immutable, so any number of matchers and threads share one.
class LlguidanceVocabulary {
 public:
  // `texts[i]` are the bytes of token i; "" for special and unused tokens, which only a grammar that names their number
  // allows. Throws std::logic_error before a successful llguidance_bind, and LlguidanceRefusal if LLGuidance refuses
  // the vocabulary.
  LlguidanceVocabulary(const std::vector<std::string> &texts, std::vector<std::int32_t> end_tokens,
                       std::shared_ptr<const TokenTexts> spelling);
  ~LlguidanceVocabulary();
  LlguidanceVocabulary(const LlguidanceVocabulary &) = delete;
  LlguidanceVocabulary &operator=(const LlguidanceVocabulary &) = delete;

  const llg::Tokenizer *tokenizer() const { return tokenizer_; }
  int size() const { return size_; }
  const std::vector<std::int32_t> &end_tokens() const { return end_tokens_; }
  const TokenTexts &spelling() const { return *spelling_; }

 private:
  llg::Tokenizer *tokenizer_;
  int size_;
  std::vector<std::int32_t> end_tokens_;
  std::shared_ptr<const TokenTexts> spelling_;
};

// Limits on compiling and on one mask; 0 is LLGuidance's default.
struct LlguidanceLimits {
  std::size_t max_items_in_row, step_max_items, max_lexer_states, max_grammar_size;
  std::uint64_t initial_lexer_fuel, step_lexer_fuel;
  bool keeps_states;  // matchers start with the lexer states of earlier matchers
};

class LlguidanceStart;

// A grammar compiled for a vocabulary. Threads may share it.
class LlguidanceGrammar {
 public:
  // `type` is "json_schema", "regex" or "lark". Throws LlguidanceRefusal if it does not compile.
  LlguidanceGrammar(std::shared_ptr<const LlguidanceVocabulary> vocabulary, const std::string &type,
                    const std::string &text, const LlguidanceLimits &limits);
  // Makes a matcher at its start.
  weft_matcher matcher();

 private:
  std::shared_ptr<const LlguidanceVocabulary> vocabulary_;
  std::shared_ptr<LlguidanceStart> start_;
};

}  // namespace weft
