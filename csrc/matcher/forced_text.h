// Tokenizes text that a grammar forces. Python-free.
//
// The tokens become drafts, so a tokenization other than the model's only lowers the acceptance rate. So plain BPE
// without pre-tokenization is enough here; forced text hardly ever needs more.
#pragma once

#include <weft/matcher.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// The tokens of a vocabulary by their bytes. Immutable, so any number of matchers and threads share one.
class TokenTexts {
 public:
  static constexpr int kMaxBytes = 256;  // of text that `encode` tokenizes at once

  // `texts[i]` are the bytes of token i; "" for special and unused tokens, which never spell text.
  explicit TokenTexts(const std::vector<std::string> &texts);

  // The token of these bytes, or -1.
  std::int32_t find(std::string_view bytes) const;
  // The bytes of a token; "" for an id out of range.
  std::string_view text(std::int32_t token) const;
  // The concatenated bytes of all tokens, and the offset of each token in them: [V+1].
  const char *bytes() const { return bytes_.data(); }
  const std::vector<std::uint32_t> &starts() const { return starts_; }

  // Tokenizes the first kMaxBytes of `text`: writes at most that many tokens and returns their number. Pairs are merged
  // by rank, which is the id of the merged token (byte-level and sentencepiece vocabularies are numbered so). If the
  // vocabulary lacks a byte of the text, each token is the longest match instead, and encoding stops at a byte that
  // begins no token.
  int encode(std::string_view text, std::int32_t *tokens) const;

  // A range of tokens, in the order of their texts.
  struct Range {
    const std::int32_t *first, *last;
    const std::int32_t *begin() const { return first; }
    const std::int32_t *end() const { return last; }
  };
  // The tokens whose text begins with `beginning` and is longer, one for each such text.
  Range longer(std::string_view beginning) const;

 private:
  void insert(std::int32_t token);
  int first_units(std::string_view text, std::int32_t *tokens, int *ends) const;
  int merge(std::string_view text, std::int32_t *tokens, int *ends, int count) const;
  int encode_longest(std::string_view text, std::int32_t *tokens) const;

  std::string bytes_;                  // all texts, one after another
  std::vector<std::uint32_t> starts_;  // [V+1] the start of each in `bytes_`
  std::vector<std::int32_t> table_;    // open addressing by text; -1 empty
  std::size_t longest_ = 0;
  bool spells_characters_ = false;
  std::vector<std::int32_t> sorted_;  // tokens by text, each text once
};

// Tokenizes `text`, which must follow the tokens that `matcher` has taken. Writes the tokens that the matcher accepts,
// at most `capacity`, and returns their number, or -1 if the matcher fails. The matcher's state does not change; its
// `accept` must not ask for an edit. Stops where the grammar also accepts a token that spells all of the remaining text
// and more, because the model may choose that token. Only the first kMaxBytes of a longer text are tokenized.
int forced_tokens(weft_matcher matcher, const TokenTexts &vocabulary, std::string_view text, std::int32_t *tokens,
                  int capacity);

}  // namespace weft
