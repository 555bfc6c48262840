#include "aici/prompt.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "aici/base/error.h"
#include "aici/base/json.h"

namespace weft {
namespace {

using Tokens = std::vector<std::int32_t>;

[[noreturn]] void fail() {
  throw WasmError("the program puts another prompt in the place of the request's, which weft does not do");
}

bool begins_with(const Tokens &whole, const Tokens &part) {
  return whole.size() >= part.size() && std::equal(part.begin(), part.end(), whole.begin());
}

Tokens behind(const Tokens &whole, std::size_t count) {
  return {whole.begin() + static_cast<std::ptrdiff_t>(count), whole.end()};
}

Tokens tokens_from(const JsonValue &value, int num_tokens) {
  static constexpr const char *kNone = "the program's answer to the prompt has a prompt that is no list of tokens";
  if (value.kind != JsonValue::kNumbers) throw WasmError(kNone);
  Tokens tokens;
  tokens.reserve(value.numbers.size());
  for (const double number : value.numbers) {
    if (!(number >= 0 && number < num_tokens) || number != static_cast<std::int32_t>(number)) throw WasmError(kNone);
    tokens.push_back(static_cast<std::int32_t>(number));
  }
  return tokens;
}

std::string text_of(const Tokens &tokens, const TokenTexts &texts) {
  std::string text;
  for (const std::int32_t token : tokens) text += texts.text(token);
  return text;
}

// The last tokens of a prompt, after so many bytes of its text.
Tokens behind_text(const Tokens &prompt, std::size_t size, const TokenTexts &texts) {
  std::size_t count = prompt.size(), end = text_of(prompt, texts).size();
  while (end > size) end -= texts.text(prompt[--count]).size();
  if (end != size) fail();
  return behind(prompt, count);
}

}  // namespace

WasmPrompt read_prompt(std::string_view result, const Tokens &prompt, const WasmHost &host) {
  const WasmProgram &program = *host.program;
  const JsonValue answer = parse_json(result, "the program's answer to the prompt");
  const JsonValue *found = answer.find("prompt");
  if (!found) return {};
  const Tokens given = tokens_from(*found, program.num_tokens);
  if (begins_with(given, prompt)) return {behind(given, prompt.size()), {}};
  const TokenTexts &texts = *program.texts;
  if (std::all_of(given.begin(), given.end(), [&](std::int32_t token) { return !texts.text(token).empty(); })) {
    const std::string text = text_of(given, texts), wanted = text_of(prompt, texts);
    const std::size_t shared = std::min(text.size(), wanted.size());
    if (text.compare(0, shared, wanted, 0, shared) != 0) fail();
    if (text.size() < wanted.size()) return {{}, behind_text(prompt, shared, texts)};
    return {program.tokenize(std::string_view(text).substr(shared), [&host] { host.time.check(); }), {}};
  }
  if (begins_with(prompt, given)) return {{}, behind(prompt, given.size())};
  fail();
}

WasmPosition begin(WasmInstance &instance, const Tokens &prompt) {
  const WasmProgram &program = *instance.host.program;
  WasmPrompt read =
      read_prompt(instance.init_prompt(R"({"prompt":)" + json_tokens(prompt) + "}"), prompt, instance.host);
  WasmPosition at;
  if (!read.added.empty()) {
    at.forced = std::make_shared<const WasmForced>(WasmForced{std::move(read.added), {}, -1});
    at.log_total = instance.host.log_total();
    return at;
  }
  at = ask(instance, std::move(at), {}, -1);
  for (const std::int32_t token : read.taken) {
    WasmTurn turn;
    if (at.takes(program, token)) turn = turn_of(program, at, token);
    if (turn.replaces || turn.next.is_terminated || !(turn.asks || turn.next.forced))
      throw WasmError(
          "the program takes back the end of the prompt, which weft does not do, and does not let it stand");
    turn.next.num_tokens = 0;  // it is of the prompt
    at = turn.asks ? ask(instance, std::move(turn.next), turn.told, turn.sampled) : std::move(turn.next);
  }
  return at;
}

}  // namespace weft
