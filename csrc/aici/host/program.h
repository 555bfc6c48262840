// A compiled program, which its instances share. Python-free.
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

namespace weft::aici {

struct Program {
  // `artefact` is from Engine::compile. `trie` is the vocabulary in AICI's format. Programs see `end_tokens[0]` as the
  // end token. Throws ProgramError for a module with unknown imports, a stack size out of range, or a vocabulary
  // without tokens or end tokens.
  Program(std::string_view artefact, std::string trie, int num_tokens, std::vector<std::int32_t> end_tokens,
          std::shared_ptr<const TokenTexts> texts, const Limits &limits);
  ~Program();
  Program(const Program &) = delete;
  Program &operator=(const Program &) = delete;

  int words() const { return (num_tokens + 31) / 32; }
  bool is_end(std::int32_t token) const;
  // Tokenizes `text`. Calls `check` regularly, which may throw to stop it. Throws ProgramError if the vocabulary can't
  // spell the text.
  std::vector<std::int32_t> tokenize(std::string_view text, const std::function<void()> &check) const;

  const std::string trie;
  const int num_tokens;
  const std::vector<std::int32_t> end_tokens;
  const std::shared_ptr<const TokenTexts> texts;
  const Limits limits;
  Engine &engine;
  wasmtime::InstancePre *linked = nullptr;

 private:
  wasmtime::Module *module_ = nullptr;
};

}  // namespace weft::aici
