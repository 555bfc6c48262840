// Text that a grammar forces, as the tokens that spell it. Python-free.
//
// It makes drafts: a sequence that the model would have spelled otherwise costs acceptance and nothing else. So the
// tokenizer here is byte-pair merging without a tokenizer's pre-processing, which a forced text hardly ever needs.
#pragma once

#include <weft/matcher.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// The tokens of a vocabulary by their bytes. Never changes, so any number of matchers and threads share one.
class TokenTexts {
 public:
  static constexpr int kMaxBytes = 256;  // of a text that is looked at

  // `texts[i]` are the bytes of token i; "" for special and unused ones, which never occur in a text.
  explicit TokenTexts(const std::vector<std::string> &texts);

  // The token of these bytes, or -1.
  std::int32_t find(std::string_view bytes) const;
  // "" for an id that is none, too.
  std::string_view text(std::int32_t token) const;
  // All of them, one after another, and where each begins: [V+1].
  const char *bytes() const { return bytes_.data(); }
  const std::vector<std::uint32_t> &starts() const { return starts_; }

  // Spells the first kMaxBytes of `text`: writes at most that many tokens and returns their number. Byte pairs are
  // merged by rank, which is the id of the merged token (byte-level and sentencepiece vocabularies are numbered so); in
  // a vocabulary that lacks a byte of the text, the longest token goes first instead, and bytes that no token begins
  // with end it.
  int encode(std::string_view text, std::int32_t *tokens) const;

  // The tokens that begin with `beginning` and go on.
  struct Range {
    const std::int32_t *first, *last;
    const std::int32_t *begin() const { return first; }
    const std::int32_t *end() const { return last; }
  };
  Range longer(std::string_view beginning) const;

 private:
  void insert(std::int32_t token);
  int first_units(std::string_view text, std::int32_t *tokens, int *ends) const;
  int merge(std::string_view text, std::int32_t *tokens, int *ends, int count) const;
  int encode_longest(std::string_view text, std::int32_t *tokens) const;

  std::string bytes_;                  // all texts, one after another
  std::vector<std::uint32_t> starts_;  // [V+1] where each begins in `bytes_`
  std::vector<std::int32_t> table_;    // open addressing by text; -1 empty
  std::size_t longest_ = 0;
  bool spells_characters_ = false;
  std::vector<std::int32_t> sorted_;  // tokens by text, each text once
};

// The tokens of `text`, which must follow what `matcher` has taken, as far as it takes them: at most `capacity` are
// written; their number, or -1 where the matcher fails. The matcher's state does not change. It ends where the
// grammar takes a token that spells all the rest of the text and goes on, as the model's tokenizer would have chosen.
int forced_tokens(weft_matcher matcher, const TokenTexts &vocabulary, std::string_view text, std::int32_t *tokens,
                  int capacity);

}  // namespace weft
