// A program's position in its sequence's text, and how one token advances it. Python-free.
//
// `transition_of` computes a token's effect, as far as that is possible without a step of the program: forced tokens
// and end tokens need none. `run_step` passes the new tokens to the program and reads its next decision.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "aici/decision.h"
#include "aici/host/instance.h"

namespace weft::aici {

// Tokens that follow without sampling. The program takes its next step after the last of them.
struct ForcedTokens {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> new_tokens;  // passed to that step
  std::int32_t sampled = -1;             // the sampled one among `new_tokens`, -1: none
};

// The part of a sequence's state that lies outside the program's instance. The objects it points to are immutable.
struct Position {
  std::shared_ptr<const Decision> decision;
  std::shared_ptr<const ForcedTokens> forced;  // null: the decision's mask holds
  std::size_t num_forced = 0;                  // taken so far
  bool is_terminated = false;
  std::uint32_t num_steps = 0;
  std::uint64_t log_total = 0;  // bytes that the program has written to its log
  std::int64_t num_tokens = 0;  // of the text, after the prompt

  bool takes(const Program &program, std::int32_t token) const;
  // Writes the mask row. Throws ProgramError for a row that is too short.
  void fill(const Program &program, std::int32_t *row, int words) const;
  // Copies the remaining forced tokens, at most `capacity`. Returns their number.
  int copy_forced(std::int32_t *tokens, int capacity) const;
  // The temperature of the next sampled token. Negative: use the request's.
  float temperature() const { return forced || is_terminated ? -1.0f : decision->temperature; }
};

// The effect of one token, as far as it is known without a step of the program.
struct Transition {
  Position next;
  bool needs_step = false;  // the program must take a step, with these tokens:
  std::vector<std::int32_t> new_tokens;
  std::int32_t sampled = -1;
  bool replaces = false;  // the token is dropped, and `replacement` follows in its place
  std::vector<std::int32_t> replacement;
};

// Returns the effect of `token`, which must be allowed at `position`.
Transition transition_of(const Program &program, const Position &position, std::int32_t token);

// Passes the new tokens to the program. Repeats the step as long as its decision neither samples, nor forces, nor
// stops. Returns the next position. Call it on a guest thread. Throws ProgramError.
Position run_step(Instance &instance, Position position, const std::vector<std::int32_t> &new_tokens,
                  std::int32_t sampled);

// A program's change to the end of its request's prompt. AICI lets a program replace the whole prompt, but here the
// model has already read it. Appended tokens are forced at the beginning of the answer. With removed tokens, a program
// asks the model to write the end of the prompt again. They are passed to the program as if they had been sampled.
struct PromptChange {
  std::vector<std::int32_t> appended;
  std::vector<std::int32_t> removed;
};

// Reads the result of aici_init_prompt. A program may tokenize the prompt's text again. That drops tokens without text
// and may split the text at other places, but counts as the same prompt. Throws ProgramError unless the result is the
// request's prompt, an extension of it or a prefix of it.
PromptChange read_prompt(std::string_view result, const std::vector<std::int32_t> &prompt, const Host &host);

// Passes the prompt to a new instance, and returns its first position. Call it on a guest thread. Throws ProgramError.
Position begin(Instance &instance, const std::vector<std::int32_t> &prompt);

}  // namespace weft::aici
