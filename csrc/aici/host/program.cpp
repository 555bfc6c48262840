#include "aici/host/program.h"

#include <algorithm>
#include <utility>

#include "aici/base/error.h"

namespace weft {

WasmProgram::WasmProgram(std::string_view artefact, std::string trie_bytes, int tokens,
                         std::vector<std::int32_t> end_ids, std::shared_ptr<const TokenTexts> token_texts,
                         const WasmLimits &given)
    : trie(std::move(trie_bytes)),
      num_tokens(tokens),
      end_tokens(std::move(end_ids)),
      texts(std::move(token_texts)),
      limits(given),
      engine(WasmEngine::of(given.stack_bytes)) {
  if (num_tokens < 1) throw WasmError("a program needs a vocabulary of at least one token");
  if (end_tokens.empty()) throw WasmError("a program needs an end token");
  for (const std::int32_t token : end_tokens)
    if (token < 0 || token >= num_tokens) throw WasmError("an end token is not in the vocabulary");
  module_ = engine.load(artefact);
  try {
    linked = engine.link(module_);
  } catch (...) {
    wasm_api().wasmtime_module_delete(module_);
    throw;
  }
}

WasmProgram::~WasmProgram() {
  wasm_api().wasmtime_instance_pre_delete(linked);
  wasm_api().wasmtime_module_delete(module_);
}

bool WasmProgram::is_end(std::int32_t token) const {
  return std::find(end_tokens.begin(), end_tokens.end(), token) != end_tokens.end();
}

// The encoder looks at this many bytes at a time; what a cut may have torn apart is encoded with what follows.
std::vector<std::int32_t> WasmProgram::tokenize(std::string_view text, const std::function<void()> &check) const {
  constexpr auto kMaxBytes = static_cast<std::size_t>(TokenTexts::kMaxBytes);
  std::vector<std::int32_t> tokens;
  std::int32_t found[kMaxBytes];
  while (!text.empty()) {
    check();
    const bool is_last = text.size() <= kMaxBytes;
    const int count = texts->encode(text, found);
    std::size_t taken = 0;
    for (int i = 0; i < count; ++i) {
      const std::size_t size = texts->text(found[i]).size();
      if (!is_last && i > 0 && taken + size > kMaxBytes / 2) break;
      taken += size;
      tokens.push_back(found[i]);
    }
    if (taken == 0) throw WasmError("the vocabulary has no token for a text that the program wants tokenized");
    text.remove_prefix(taken);
  }
  return tokens;
}

}  // namespace weft
