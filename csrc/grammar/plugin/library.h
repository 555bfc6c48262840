// Plug-ins: shared libraries that make matchers or recognisers (weft/plugin.h). Python-free.
#pragma once

#include <weft/matcher.h>
#include <weft/plugin.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "matcher/forced_text.h"
#include "matcher/token_trie.h"

namespace weft {

// Loads a library and returns its table of functions. The library is never unloaded. Throws std::runtime_error if it
// cannot be loaded, or is not a plug-in of this version.
const weft_plugin_ops &load_plugin(const std::string &path);

// A plug-in's guide. Its matchers and recognisers keep it alive.
class PluginGuide {
 public:
  // Throws std::runtime_error with the plug-in's message, and std::invalid_argument if `texts` is of another size.
  PluginGuide(const weft_plugin_ops &ops, std::shared_ptr<const TokenTexts> texts, std::vector<std::int32_t> end_tokens,
              int vocab_size, std::string_view arg);
  ~PluginGuide();
  PluginGuide(const PluginGuide &) = delete;
  PluginGuide &operator=(const PluginGuide &) = delete;

  bool recognizes() const { return ops_.recognizer != nullptr; }
  void *native() const { return guide_; }
  const weft_plugin_ops &ops() const { return ops_; }

 private:
  const weft_plugin_ops &ops_;
  const std::shared_ptr<const TokenTexts> texts_;
  const std::vector<std::int32_t> end_tokens_;
  weft_vocabulary vocabulary_{};
  void *guide_ = nullptr;
};

// Makes a matcher at its start. If the plug-in makes recognisers, the matcher walks `trie` with one. Throws
// std::runtime_error.
weft_matcher plugin_matcher(std::shared_ptr<const PluginGuide> guide, std::shared_ptr<const TokenTexts> texts,
                            std::shared_ptr<const TokenTrie> trie, int vocab_size,
                            std::vector<std::int32_t> end_tokens);

}  // namespace weft
