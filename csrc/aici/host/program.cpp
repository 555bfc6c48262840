#include "aici/host/program.h"

#include <algorithm>
#include <utility>

#include "aici/base/limits.h"

namespace weft::aici {

Program::Program(std::string_view artefact, std::string trie_bytes, int tokens, std::vector<std::int32_t> end_ids,
                 std::shared_ptr<const TokenTexts> token_texts, const Limits &program_limits)
    : trie(std::move(trie_bytes)),
      num_tokens(tokens),
      end_tokens(std::move(end_ids)),
      texts(std::move(token_texts)),
      limits(program_limits),
      engine(Engine::of(program_limits.stack_bytes)) {
  if (num_tokens < 1) throw ProgramError("a program needs a vocabulary of at least one token");
  if (end_tokens.empty()) throw ProgramError("a program needs an end token");
  for (const std::int32_t token : end_tokens)
    if (token < 0 || token >= num_tokens) throw ProgramError("an end token is not in the vocabulary");
  module_ = engine.load(artefact);
  try {
    linked = engine.link(module_);
  } catch (...) {
    wasmtime::api().wasmtime_module_delete(module_);
    throw;
  }
}

Program::~Program() {
  wasmtime::api().wasmtime_instance_pre_delete(linked);
  wasmtime::api().wasmtime_module_delete(module_);
}

bool Program::is_end(std::int32_t token) const {
  return std::find(end_tokens.begin(), end_tokens.end(), token) != end_tokens.end();
}

// The encoder accepts a bounded number of bytes, and a cut may split a token. So only the tokens of the first half of a
// cut part are used, and the rest is encoded again together with the text after it.
std::vector<std::int32_t> Program::tokenize(std::string_view text, const std::function<void()> &check) const {
  constexpr auto kMaxBytes = static_cast<std::size_t>(TokenTexts::kMaxBytes);
  std::vector<std::int32_t> tokens;
  std::int32_t part[kMaxBytes];
  while (!text.empty()) {
    check();
    const bool is_last = text.size() <= kMaxBytes;
    const int count = texts->encode(text, part);
    std::size_t taken = 0;
    for (int i = 0; i < count; ++i) {
      const std::size_t size = texts->text(part[i]).size();
      if (!is_last && i > 0 && taken + size > kMaxBytes / 2) break;
      taken += size;
      tokens.push_back(part[i]);
    }
    if (taken == 0) throw ProgramError("the vocabulary has no token for a text that the program wants tokenized");
    text.remove_prefix(taken);
  }
  return tokens;
}

}  // namespace weft::aici
