// What a program decides in one step: its answer to aici_mid_process, read and checked. Python-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aici/host/host.h"

namespace weft {

struct WasmSplice {
  std::vector<std::int32_t> when_sampled;  // sorted; empty: whatever was sampled
  bool replaces = false;                   // the sampled token goes
  std::vector<std::int32_t> tokens;        // and these follow
};

struct WasmDecision {
  bool stops = false;                // only an end may follow
  std::vector<std::int32_t> mask;    // [words] what may follow; empty where nothing is sampled
  std::vector<std::int32_t> forced;  // what follows without sampling, where `mask` is empty
  float temperature = -1;            // negative: the request's own
  std::vector<WasmSplice> splices;

  bool allows(std::int32_t token) const;
  // What becomes of a token that was sampled, or null: it is appended.
  const WasmSplice *splice_of(std::int32_t token) const;
};

// Reads the result that `host` has. Throws WasmError for one that is not as the interface says, or asks for what weft
// does not do.
WasmDecision read_decision(WasmHost &host);

// The argument of a step: the tokens that follow what the program knows, and the sampled one (-1: none).
std::string step_argument(const std::vector<std::int32_t> &tokens, std::int32_t sampled, std::uint32_t sequence);

// "[1,2,3]"
std::string json_tokens(const std::vector<std::int32_t> &tokens);

}  // namespace weft
