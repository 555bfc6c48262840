// A matcher that bounds the length of the answer: it allows the inner matcher's tokens after which the answer can still
// be completed in time.
#pragma once

#include <weft/matcher.h>

#include <memory>
#include <string>

#include "grammar/closing/growth.h"

namespace weft {

// The analysis of a compiled guide, shared by its closing matchers.
struct ClosingTables {
  std::shared_ptr<const ClosingGrammar> grammar;
  std::shared_ptr<const ClosingGrowth> growth;
};

// Wraps `inner`, which is at its start, for an answer of at most `room` tokens including the end token, and takes
// ownership of it. At every step a shortest end is known that fits in the rest; where another token might cost too
// much, only the end's next token is allowed. On failure `ops` is null, `error` has the reason, `needed` the number of
// tokens of the shortest answer (0: unknown), and `inner` is destroyed.
weft_matcher closing_matcher(weft_matcher inner, const ClosingTables &tables, int room, std::string &error,
                             int &needed);

}  // namespace weft
