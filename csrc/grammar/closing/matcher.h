// A matcher that ends in time: it lets through what its inner matcher allows as long as the answer can still be whole.
#pragma once

#include <weft/matcher.h>

#include <memory>
#include <string>

#include "grammar/closing/growth.h"

namespace weft {

// What closing needs to know of a compiled guide; shared by its matchers.
struct ClosingTables {
  std::shared_ptr<const ClosingGrammar> grammar;
  std::shared_ptr<const ClosingGrowth> growth;
};

// Wraps `inner`, which is at its start and becomes the wrapper's own, for an answer of at most `room` tokens, the end
// token among them. A shortest end is known at every place and fits what is left: where other tokens could cost too
// much, its next token alone is allowed. With no matcher (`ops` null), `error` says why, `needed` how many tokens the
// shortest answer has (0: that is not known), and the inner matcher is destroyed.
weft_matcher closing_matcher(weft_matcher inner, const ClosingTables &tables, int room, std::string &error,
                             int &needed);

}  // namespace weft
