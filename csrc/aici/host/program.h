// A compiled program with all that its instances share. Python-free.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aici/base/limits.h"
#include "aici/host/engine.h"
#include "matcher/forced_text.h"

namespace weft {

struct WasmProgram {
  // `artefact` is what WasmEngine::compile made; `trie` the vocabulary as programs read it; `end_tokens[0]` is the one
  // that programs know as the end. Throws WasmError for a module that imports what programs don't have.
  WasmProgram(std::string_view artefact, std::string trie, int num_tokens, std::vector<std::int32_t> end_tokens,
              std::shared_ptr<const TokenTexts> texts, const WasmLimits &limits);
  ~WasmProgram();
  WasmProgram(const WasmProgram &) = delete;
  WasmProgram &operator=(const WasmProgram &) = delete;

  int words() const { return (num_tokens + 31) / 32; }
  bool is_end(std::int32_t token) const;
  // The tokens that spell `text`; `check` is called once in a while, and what it throws ends it. Throws WasmError where
  // there are none.
  std::vector<std::int32_t> tokenize(std::string_view text, const std::function<void()> &check) const;

  const std::string trie;
  const int num_tokens;
  const std::vector<std::int32_t> end_tokens;
  const std::shared_ptr<const TokenTexts> texts;
  const WasmLimits limits;
  WasmEngine &engine;
  wasm::InstancePre *linked = nullptr;

 private:
  wasm::Module *module_ = nullptr;
};

}  // namespace weft
