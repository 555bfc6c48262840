// The tokens of a vocabulary as a trie of their bytes, for walks with a recogniser. Python-free.
#pragma once

#include <cstdint>
#include <vector>

#include "matcher/forced_text.h"

namespace weft {

// Immutable, so any number of matchers and threads share one.
class TokenTrie {
 public:
  // The tokens below `vocab_size` that have bytes.
  TokenTrie(const TokenTexts &texts, int vocab_size);

  // In depth-first order, so that a node's children follow it.
  struct Node {
    std::uint32_t after;        // the node after this one's subtree
    std::uint32_t first_token;  // the first of its tokens, which end at the next node's
    std::uint32_t depth;        // bytes up to here, at least 1
    std::uint8_t byte;
  };
  const std::vector<Node> &nodes() const { return nodes_; }
  // The tokens whose bytes end at a node; there may be several with the same bytes.
  const std::int32_t *tokens_begin(std::size_t node) const { return tokens_.data() + nodes_[node].first_token; }
  const std::int32_t *tokens_end(std::size_t node) const {
    return node + 1 < nodes_.size() ? tokens_begin(node + 1) : tokens_.data() + tokens_.size();
  }
  std::size_t memory_bytes() const { return nodes_.size() * sizeof(Node) + tokens_.size() * sizeof tokens_[0]; }

 private:
  std::vector<Node> nodes_;
  std::vector<std::int32_t> tokens_;
};

}  // namespace weft
