// A matcher of free text that another matcher takes over from.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "grammar/after/rules.h"

namespace weft {

// Free text as `rules` have it, then what `guide` takes; `guide` is at its start, and nothing else uses it. After
// `max_free_tokens` tokens (negative: any number) only the trigger may come.
weft_matcher after_matcher(std::shared_ptr<const AfterRules> rules, MatcherRef guide, int max_free_tokens);

// The matcher after the free text of such a one, if it is one; `num_tokens` of the whole text become those that this
// guide was given. At any time, on any thread.
std::optional<weft_matcher> guide_after(const weft_matcher &matcher, std::int64_t &num_tokens);

}  // namespace weft
