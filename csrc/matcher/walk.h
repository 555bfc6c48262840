// Leading a matcher along tokens as the engine does, one mask and one token at a time: for benchmarks. Python-free.
#pragma once

#include <cstdint>
#include <vector>

#include "matcher/handle.h"

namespace weft {

struct Walk {
  int taken = 0;          // tokens that the matcher took; it stands after them
  int disagreements = 0;  // tokens of which the mask said otherwise than `accept`
  bool failed = false;    // `error` of the matcher has the text
  // Nanoseconds of this thread's processor time, of each fill and each accept; empty unless timed.
  std::vector<std::int64_t> fill_ns, accept_ns;
};

// Fills `row` and takes the next of `tokens`, until one is refused or all are taken.
Walk walk(MatcherHandle &matcher, const std::vector<std::int32_t> &tokens, std::int32_t *row, int words, bool timed);

}  // namespace weft
