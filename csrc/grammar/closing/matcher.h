// A matcher that bounds the length of the answer. It wraps another matcher, and allows only those of its tokens after
// which the answer can still be completed within the bound.
#pragma once

#include <weft/matcher.h>

#include <memory>
#include <string>

#include "grammar/closing/growth.h"

namespace weft {

// The analysis of a compiled guide, which all its closing matchers share.
struct ClosingTables {
  std::shared_ptr<const ClosingGrammar> grammar;
  std::shared_ptr<const ClosingGrowth> growth;
};

// Wraps `inner`, which is at its start, for an answer of at most `room` tokens including the end token, and takes
// ownership of it. At every step the matcher can find an end that fits into the remaining tokens. A token that might
// make every end too long is allowed only if it is the next token of the known end. On failure `ops` is null, `error`
// has the reason, and `inner` is destroyed. `needed` gets the number of tokens of the shortest answer (0: unknown).
weft_matcher closing_matcher(weft_matcher inner, const ClosingTables &tables, int room, std::string &error,
                             int &needed);

}  // namespace weft
