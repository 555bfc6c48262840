// A matcher of free text that another matcher takes over from.
#pragma once

#include <memory>

#include "after_rules.h"

namespace weft {

// Free text as `rules` have it, then what `guide` takes; `guide` is at its start and used by nobody else. Behind
// `max_free_tokens` tokens (negative: any number) only the trigger may come.
weft_matcher after_matcher(std::shared_ptr<const AfterRules> rules, MatcherRef guide, int max_free_tokens);

}  // namespace weft
