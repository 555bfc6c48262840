#include "matcher/token_trie.h"

#include <algorithm>
#include <string_view>

namespace weft {

TokenTrie::TokenTrie(const TokenTexts &texts, int vocab_size) {
  for (std::int32_t token = 0; token < vocab_size; ++token)
    if (!texts.text(token).empty()) tokens_.push_back(token);
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [&](std::int32_t left, std::int32_t right) { return texts.text(left) < texts.text(right); });
  std::vector<std::uint32_t> path;  // the nodes of the last token's bytes
  std::string_view last;
  for (std::size_t at = 0; at < tokens_.size(); ++at) {
    const std::string_view text = texts.text(tokens_[at]);
    std::size_t common = 0;
    while (common < std::min(last.size(), text.size()) && last[common] == text[common]) ++common;
    for (; path.size() > common; path.pop_back()) nodes_[path.back()].after = static_cast<std::uint32_t>(nodes_.size());
    for (std::size_t i = common; i < text.size(); ++i) {
      path.push_back(static_cast<std::uint32_t>(nodes_.size()));
      nodes_.push_back(
          {0, static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(i + 1), static_cast<std::uint8_t>(text[i])});
    }
    last = text;
  }
  for (; !path.empty(); path.pop_back()) nodes_[path.back()].after = static_cast<std::uint32_t>(nodes_.size());
}

}  // namespace weft
