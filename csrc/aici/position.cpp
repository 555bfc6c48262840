#include "aici/position.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "aici/base/json.h"
#include "aici/base/limits.h"

namespace weft::aici {
namespace {

using Tokens = std::vector<std::int32_t>;

// A step whose decision is empty is repeated, as AICI's servers do, but at most this often.
constexpr int kMaxEmptySteps = 100;

// The transition for the next forced token.
Transition forced_transition(const Program &program, Transition transition, std::int32_t token) {
  const ForcedTokens &forced = *transition.next.forced;
  ++transition.next.num_forced;
  if (program.is_end(token)) {
    transition.next.is_terminated = true;
  } else if (transition.next.num_forced == forced.tokens.size()) {
    transition.needs_step = true;
    transition.new_tokens = forced.new_tokens;
    transition.sampled = forced.sampled;
  }
  return transition;
}

// The transition that drops the sampled token and puts `tokens` in its place, up to the first end token.
Transition replacing_transition(const Program &program, Transition transition, Tokens tokens, std::int32_t token) {
  const auto end = std::find_if(tokens.begin(), tokens.end(), [&](std::int32_t item) { return program.is_end(item); });
  if (end != tokens.end()) {
    tokens.erase(end + 1, tokens.end());
    transition.next.is_terminated = true;
  } else {
    transition.needs_step = true;
    transition.new_tokens = tokens;
    transition.sampled = token;
  }
  transition.replaces = true;
  transition.next.num_tokens += static_cast<std::int64_t>(tokens.size()) - 1;
  transition.replacement = std::move(tokens);
  return transition;
}

[[noreturn]] void refuse_prompt() {
  throw ProgramError("the program puts another prompt in the place of the request's, which weft does not do");
}

bool begins_with(const Tokens &whole, const Tokens &part) {
  return whole.size() >= part.size() && std::equal(part.begin(), part.end(), whole.begin());
}

Tokens after(const Tokens &whole, std::size_t count) {
  return {whole.begin() + static_cast<std::ptrdiff_t>(count), whole.end()};
}

Tokens prompt_tokens(const JsonValue &value, int num_tokens) {
  static constexpr const char *kProblem = "the program's answer to the prompt has a prompt that is no list of tokens";
  if (value.kind != JsonValue::kNumbers) throw ProgramError(kProblem);
  Tokens tokens;
  tokens.reserve(value.numbers.size());
  for (const double number : value.numbers) {
    if (!(number >= 0 && number < num_tokens) || number != static_cast<std::int32_t>(number))
      throw ProgramError(kProblem);
    tokens.push_back(static_cast<std::int32_t>(number));
  }
  return tokens;
}

std::string text_of(const Tokens &tokens, const TokenTexts &texts) {
  std::string text;
  for (const std::int32_t token : tokens) text += texts.text(token);
  return text;
}

// Returns the tokens of a prompt after the first `size` bytes of its text.
Tokens after_text(const Tokens &prompt, std::size_t size, const TokenTexts &texts) {
  std::size_t count = prompt.size(), end = text_of(prompt, texts).size();
  while (end > size) end -= texts.text(prompt[--count]).size();
  if (end != size) refuse_prompt();
  return after(prompt, count);
}

}  // namespace

bool Position::takes(const Program &program, std::int32_t token) const {
  if (token < 0 || token >= program.num_tokens || is_terminated) return false;
  if (forced) return token == forced->tokens[num_forced];
  return decision->stops ? program.is_end(token) : decision->allows(token);
}

void Position::fill(const Program &program, std::int32_t *row, int words) const {
  const int needed = program.words();
  if (words < needed) throw ProgramError("the mask row is shorter than the vocabulary");
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

int Position::copy_forced(std::int32_t *tokens, int capacity) const {
  if (!forced || is_terminated) return 0;
  const std::size_t count =
      std::min(forced->tokens.size() - num_forced, static_cast<std::size_t>(std::max(capacity, 0)));
  std::copy_n(forced->tokens.begin() + static_cast<std::ptrdiff_t>(num_forced), count, tokens);
  return static_cast<int>(count);
}

Transition transition_of(const Program &program, const Position &position, std::int32_t token) {
  Transition transition;
  transition.next = position;
  ++transition.next.num_tokens;
  if (position.forced) return forced_transition(program, std::move(transition), token);
  const Splice *splice = position.decision->stops ? nullptr : position.decision->splice_of(token);
  if (splice && splice->replaces) return replacing_transition(program, std::move(transition), splice->tokens, token);
  if (program.is_end(token)) {
    transition.next.is_terminated = true;
    return transition;
  }
  Tokens new_tokens{token};
  if (splice && !splice->tokens.empty()) {
    new_tokens.insert(new_tokens.end(), splice->tokens.begin(), splice->tokens.end());
    transition.next.forced =
        std::make_shared<const ForcedTokens>(ForcedTokens{splice->tokens, std::move(new_tokens), token});
    transition.next.num_forced = 0;
    return transition;
  }
  transition.needs_step = true;
  transition.new_tokens = std::move(new_tokens);
  transition.sampled = token;
  return transition;
}

Position run_step(Instance &instance, Position position, const Tokens &new_tokens, std::int32_t sampled) {
  std::string argument = step_argument(new_tokens, sampled, instance.host.sequence);
  for (int i = 0; i < kMaxEmptySteps; ++i) {
    // A ticket is the number of steps so far in the text. So a step that is repeated after a rollback has the same
    // ticket again.
    instance.host.ticket = ++position.num_steps;
    instance.host.num_tokens = position.num_tokens;
    instance.mid_process(std::move(argument));
    auto decision = std::make_shared<Decision>(read_decision(instance.host));
    if (decision->stops || !decision->mask.empty() || !decision->forced.empty()) {
      position.forced.reset();
      if (!decision->forced.empty())
        position.forced = std::make_shared<const ForcedTokens>(ForcedTokens{decision->forced, decision->forced, -1});
      position.num_forced = 0;
      position.decision = std::move(decision);
      position.log_total = instance.host.log_total();
      return position;
    }
    argument = step_argument({}, -1, instance.host.sequence);
  }
  throw ProgramError("the program neither sampled nor forced a token in " + std::to_string(kMaxEmptySteps) + " steps");
}

PromptChange read_prompt(std::string_view result, const Tokens &prompt, const Host &host) {
  const Program &program = *host.program;
  const JsonValue answer = parse_json(result, "the program's answer to the prompt");
  const JsonValue *member = answer.find("prompt");
  if (!member) return {};
  const Tokens given = prompt_tokens(*member, program.num_tokens);
  if (begins_with(given, prompt)) return {after(given, prompt.size()), {}};
  const TokenTexts &texts = *program.texts;
  const bool has_text =
      std::all_of(given.begin(), given.end(), [&](std::int32_t token) { return !texts.text(token).empty(); });
  if (has_text) {  // it may be the prompt's text, tokenized again
    const std::string given_text = text_of(given, texts), prompt_text = text_of(prompt, texts);
    const std::size_t size = std::min(given_text.size(), prompt_text.size());
    if (given_text.compare(0, size, prompt_text, 0, size) != 0) refuse_prompt();
    if (given_text.size() < prompt_text.size()) return {{}, after_text(prompt, size, texts)};
    return {program.tokenize(std::string_view(given_text).substr(size), [&host] { host.time.check(); }), {}};
  }
  if (begins_with(prompt, given)) return {{}, after(prompt, given.size())};
  refuse_prompt();
}

Position begin(Instance &instance, const Tokens &prompt) {
  const Program &program = *instance.host.program;
  PromptChange change =
      read_prompt(instance.init_prompt(R"({"prompt":)" + json_tokens(prompt) + "}"), prompt, instance.host);
  Position position;
  if (!change.appended.empty()) {
    position.forced = std::make_shared<const ForcedTokens>(ForcedTokens{std::move(change.appended), {}, -1});
    position.log_total = instance.host.log_total();
    return position;
  }
  position = run_step(instance, std::move(position), {}, -1);
  for (const std::int32_t token : change.removed) {
    Transition transition;
    if (position.takes(program, token)) transition = transition_of(program, position, token);
    if (transition.replaces || transition.next.is_terminated || !(transition.needs_step || transition.next.forced))
      throw ProgramError(
          "the program takes back the end of the prompt, which weft does not do, and does not let it stand");
    transition.next.num_tokens = 0;  // the token belongs to the prompt
    position = transition.needs_step
                   ? run_step(instance, std::move(transition.next), transition.new_tokens, transition.sampled)
                   : std::move(transition.next);
  }
  return position;
}

}  // namespace weft::aici
