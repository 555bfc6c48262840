// A matcher over a recogniser: a mask is a walk over the tokens' bytes. Python-free.
#pragma once

#include <weft/matcher.h>

#include <memory>
#include <vector>

#include "grammar/recognizer/handle.h"
#include "matcher/token_trie.h"

namespace weft {

// What the matchers of one guide share.
struct RecognizerGuide {
  std::shared_ptr<const TokenTexts> texts;
  std::shared_ptr<const TokenTrie> trie;
  int vocab_size;
  std::vector<std::int32_t> end_tokens;
  MakeRecognizing make;
};

// A matcher at the start of a recogniser of its own; ops are null and `error` says why where none can be made.
weft_matcher recognizer_matcher(std::shared_ptr<const RecognizerGuide> guide, std::string &error);

}  // namespace weft
