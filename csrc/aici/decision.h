// A program's decision in one step: its result of aici_mid_process, parsed and checked. Python-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aici/host/host.h"

namespace weft::aici {

// An edit of the text after a sampled token. AICI calls it a splice.
struct Splice {
  std::vector<std::int32_t> when_sampled;  // sorted; empty: any token
  bool replaces = false;                   // drops the sampled token
  std::vector<std::int32_t> tokens;        // the tokens to append then
};

struct Decision {
  bool stops = false;                // only an end token may follow
  std::vector<std::int32_t> mask;    // [words], the tokens that may follow; empty if none is sampled
  std::vector<std::int32_t> forced;  // if `mask` is empty: the tokens that follow without sampling
  float temperature = -1;            // negative: use the request's
  std::vector<Splice> splices;

  bool allows(std::int32_t token) const;
  // Returns the splice that applies to a sampled token, or null if the token is appended unchanged.
  const Splice *splice_of(std::int32_t token) const;
};

// Parses the result in `host`. Throws ProgramError if it breaks the interface, or needs a feature that weft lacks.
Decision read_decision(Host &host);

// The JSON argument of aici_mid_process: the tokens since the last step, which of them was sampled (-1: none), and the
// sequence's number.
std::string step_argument(const std::vector<std::int32_t> &tokens, std::int32_t sampled, std::uint32_t sequence);

// The tokens as a JSON list: "[1,2,3]".
std::string json_tokens(const std::vector<std::int32_t> &tokens);

}  // namespace weft::aici
