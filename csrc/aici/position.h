// Where a program's sequence stands, and what taking a token makes of it: whether the program has the turn, or the
// tokens that it forced. Python-free.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "aici/host/instance.h"
#include "aici/step.h"

namespace weft {

// Tokens that must be taken before the program is asked again.
struct WasmForced {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> told;  // what the program is told of then
  std::int32_t sampled = -1;
};

// Where a sequence is, beside its instance. What it points to never changes.
struct WasmPosition {
  std::shared_ptr<const WasmDecision> decision;
  std::shared_ptr<const WasmForced> forced;  // null: the decision's mask holds
  std::size_t num_forced = 0;                // taken of them
  bool is_terminated = false;
  std::uint32_t num_steps = 0;
  std::uint64_t log_total = 0;
  std::int64_t num_tokens = 0;  // of the text, after the prompt

  bool takes(const WasmProgram &program, std::int32_t token) const;
  // Writes the mask. Throws WasmError for a row that is too short.
  void fill(const WasmProgram &program, std::int32_t *row, int words) const;
  // The tokens that are forced, at most `capacity`; their number.
  int copy_forced(std::int32_t *tokens, int capacity) const;
  // Negative: the request's own.
  float temperature() const { return forced || is_terminated ? -1.0f : decision->temperature; }
};

// What comes of a token that is taken.
struct WasmTurn {
  WasmPosition next;  // as far as the program need not be asked
  bool asks = false;  // the program is told of `told`, with `sampled` among or before them
  std::vector<std::int32_t> told;
  std::int32_t sampled = -1;
  bool replaces = false;  // the token goes, and these come in its place
  std::vector<std::int32_t> replacing;
};
WasmTurn turn_of(const WasmProgram &program, const WasmPosition &at, std::int32_t token);

// Tells the program which tokens came, until it wants some to be sampled or forced. On a guest thread. Throws
// WasmError.
WasmPosition ask(WasmInstance &instance, WasmPosition at, const std::vector<std::int32_t> &told, std::int32_t sampled);

}  // namespace weft
