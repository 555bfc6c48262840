// A matcher over a recogniser. To fill a mask, it walks the trie of all tokens' bytes. Python-free.
#pragma once

#include <weft/matcher.h>

#include <memory>
#include <vector>

#include "grammar/recognizer/handle.h"
#include "matcher/token_trie.h"

namespace weft {

// The data that the matchers of one guide share.
struct RecognizerGuide {
  std::shared_ptr<const TokenTexts> texts;
  std::shared_ptr<const TokenTrie> trie;
  int vocab_size;
  std::vector<std::int32_t> end_tokens;
  MakeRecognizing make;
};

// Makes a matcher at its start, with a new recogniser. On failure `ops` is null and `error` has the reason.
weft_matcher recognizer_matcher(std::shared_ptr<const RecognizerGuide> guide, std::string &error);

}  // namespace weft
