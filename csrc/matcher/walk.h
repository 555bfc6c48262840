// Drives a matcher over given tokens as the engine does: a mask, then a token. For benchmarks. Python-free.
#pragma once

#include <cstdint>
#include <vector>

#include "matcher/handle.h"

namespace weft {

struct Walk {
  int taken = 0;          // tokens that the matcher accepted; its state is after them
  int disagreements = 0;  // tokens for which the mask and `accept` disagree
  bool failed = false;    // the matcher's `error` has the reason
  // Processor time of each fill and each accept in ns; empty unless timed.
  std::vector<std::int64_t> fill_ns, accept_ns;
};

// For each token, fills `row` and then takes the token. Stops when a token is refused or the matcher fails.
Walk walk(MatcherHandle &matcher, const std::vector<std::int32_t> &tokens, std::int32_t *row, int words, bool timed);

}  // namespace weft
