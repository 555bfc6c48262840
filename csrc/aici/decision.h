// A program's decision in one step: its result of aici_mid_process, parsed and checked. Python-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aici/host/host.h"

namespace weft::aici {

// AICI's word for an edit that follows a sampled token.
struct Splice {
  std::vector<std::int32_t> when_sampled;  // sorted; empty: any token
  bool replaces = false;                   // drop the sampled token
  std::vector<std::int32_t> tokens;        // then append these
};

struct Decision {
  bool stops = false;                // only an end token may follow
  std::vector<std::int32_t> mask;    // [words], the tokens that may follow; empty if none is sampled
  std::vector<std::int32_t> forced;  // if `mask` is empty: the tokens that follow without sampling
  float temperature = -1;            // negative: the request's own
  std::vector<Splice> splices;

  bool allows(std::int32_t token) const;
  // The splice that follows a sampled token, or null if the token is appended as it is.
  const Splice *splice_of(std::int32_t token) const;
};

// Parses the result in `host`. Throws ProgramError if it breaks the interface, or needs a feature that weft lacks.
Decision read_decision(Host &host);

// The argument of aici_mid_process: the tokens since the last step, and the sampled one among them (-1: none).
std::string step_argument(const std::vector<std::int32_t> &tokens, std::int32_t sampled, std::uint32_t sequence);

// "[1,2,3]"
std::string json_tokens(const std::vector<std::int32_t> &tokens);

}  // namespace weft::aici
