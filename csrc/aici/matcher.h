// A program as a matcher. Its code runs on threads of its own (aici/host/guest_pool.h); the matcher's
// caller waits.
#pragma once

#include <weft/matcher.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aici/host/program.h"
#include "aici/host/variables.h"

namespace weft {

// Starts an instance: creates it, shows it the prompt and takes its first step. `variables` are shared by the matchers
// that were started with them, and by forks; a write that is taken back is gone for all of them. Throws WasmError.
weft_matcher wasm_matcher(std::shared_ptr<const WasmProgram> program, std::string argument,
                          const std::vector<std::int32_t> &prompt, std::shared_ptr<WasmVariables> variables);

// What is kept to take the program's tokens back; 0 for a matcher that is no program's.
std::size_t wasm_undo_bytes(const weft_matcher &matcher);

// What the program wrote to its log, as far as it is kept. At any time, on any thread. False: not a program's matcher.
bool wasm_log(const weft_matcher &matcher, std::string &log);

// What a program leaves of a text of `num_tokens` tokens after the prompt: the end of its log, log_bytes at most, and
// the request's variables, without what its steps beyond these tokens wrote. At any time, on any thread. None: it is
// not a program's matcher.
struct WasmReport {
  std::string log;
  WasmVariables::Values variables;
};
std::optional<WasmReport> wasm_report(const weft_matcher &matcher, std::int64_t num_tokens);

}  // namespace weft
