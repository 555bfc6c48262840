#include "aici/turn.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "aici/base/error.h"

namespace weft {
namespace {

// A program that asks for nothing is asked again, as a server of many steps would; not for ever.
constexpr int kMaxEmptySteps = 100;

WasmTurn of_forced(const WasmProgram &program, WasmTurn turn, std::int32_t token) {
  const WasmForced &forced = *turn.next.forced;
  ++turn.next.num_forced;
  if (program.is_end(token)) {
    turn.next.is_terminated = true;
  } else if (turn.next.num_forced == forced.tokens.size()) {
    turn.asks = true;
    turn.told = forced.told;
    turn.sampled = forced.sampled;
  }
  return turn;
}

// The token goes; an end among those in its place is the last of them.
WasmTurn of_replaced(const WasmProgram &program, WasmTurn turn, std::vector<std::int32_t> tokens, std::int32_t token) {
  const auto end = std::find_if(tokens.begin(), tokens.end(), [&](std::int32_t one) { return program.is_end(one); });
  if (end != tokens.end()) {
    tokens.erase(end + 1, tokens.end());
    turn.next.is_terminated = true;
  } else {
    turn.asks = true;
    turn.told = tokens;
    turn.sampled = token;
  }
  turn.replaces = true;
  turn.next.num_tokens += static_cast<std::int64_t>(tokens.size()) - 1;
  turn.replacing = std::move(tokens);
  return turn;
}

}  // namespace

bool WasmPosition::takes(const WasmProgram &program, std::int32_t token) const {
  if (token < 0 || token >= program.num_tokens || is_terminated) return false;
  if (forced) return token == forced->tokens[num_forced];
  return decision->stops ? program.is_end(token) : decision->allows(token);
}

void WasmPosition::fill(const WasmProgram &program, std::int32_t *row, int words) const {
  const int needed = program.words();
  if (words < needed) throw WasmError("the mask row is shorter than the vocabulary");
  const auto allow = [row](std::int32_t token) {
    row[token / 32] = static_cast<std::int32_t>(static_cast<std::uint32_t>(row[token / 32]) | 1u << (token % 32));
  };
  if (!forced && !is_terminated && !decision->stops) {
    std::memcpy(row, decision->mask.data(), static_cast<std::size_t>(needed) * sizeof *row);
    std::memset(row + needed, 0, static_cast<std::size_t>(words - needed) * sizeof *row);
    return;
  }
  std::memset(row, 0, static_cast<std::size_t>(words) * sizeof *row);
  if (forced && !is_terminated) return allow(forced->tokens[num_forced]);
  for (const std::int32_t token : program.end_tokens) allow(token);
}

int WasmPosition::copy_forced(std::int32_t *tokens, int capacity) const {
  if (!forced || is_terminated) return 0;
  const std::size_t count =
      std::min(forced->tokens.size() - num_forced, static_cast<std::size_t>(std::max(capacity, 0)));
  std::copy_n(forced->tokens.begin() + static_cast<std::ptrdiff_t>(num_forced), count, tokens);
  return static_cast<int>(count);
}

WasmTurn turn_of(const WasmProgram &program, const WasmPosition &at, std::int32_t token) {
  WasmTurn turn;
  turn.next = at;
  ++turn.next.num_tokens;
  if (at.forced) return of_forced(program, std::move(turn), token);
  const WasmSplice *splice = at.decision->stops ? nullptr : at.decision->splice_of(token);
  if (splice && splice->replaces) return of_replaced(program, std::move(turn), splice->tokens, token);
  if (program.is_end(token)) {
    turn.next.is_terminated = true;
    return turn;
  }
  std::vector<std::int32_t> told{token};
  if (splice && !splice->tokens.empty()) {
    told.insert(told.end(), splice->tokens.begin(), splice->tokens.end());
    turn.next.forced = std::make_shared<const WasmForced>(WasmForced{splice->tokens, std::move(told), token});
    turn.next.num_forced = 0;
    return turn;
  }
  turn.asks = true;
  turn.told = std::move(told);
  turn.sampled = token;
  return turn;
}

WasmPosition ask(WasmInstance &instance, WasmPosition at, const std::vector<std::int32_t> &told, std::int32_t sampled) {
  std::string argument = step_argument(told, sampled, instance.host.sequence);
  for (int i = 0; i < kMaxEmptySteps; ++i) {
    // Counted by steps, so that a step that is taken again gets the same.
    instance.host.ticket = ++at.num_steps;
    instance.host.num_tokens = at.num_tokens;
    instance.mid_process(std::move(argument));
    auto decision = std::make_shared<WasmDecision>(read_decision(instance.host));
    if (decision->stops || !decision->mask.empty() || !decision->forced.empty()) {
      at.forced.reset();
      if (!decision->forced.empty())
        at.forced = std::make_shared<const WasmForced>(WasmForced{decision->forced, decision->forced, -1});
      at.num_forced = 0;
      at.decision = std::move(decision);
      at.log_total = instance.host.log_total();
      return at;
    }
    argument = step_argument({}, -1, instance.host.sequence);
  }
  throw WasmError("the program neither sampled nor forced a token in " + std::to_string(kMaxEmptySteps) + " steps");
}

}  // namespace weft
