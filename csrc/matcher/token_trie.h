// A trie over the bytes of a vocabulary's tokens. A recogniser's matcher walks it to fill a mask. Python-free.
#pragma once

#include <cstdint>
#include <vector>

#include "matcher/forced_text.h"

namespace weft {

// Immutable, so any number of matchers and threads share one.
class TokenTrie {
 public:
  // Builds the trie of the tokens below `vocab_size` that have bytes.
  TokenTrie(const TokenTexts &texts, int vocab_size);

  // Nodes are in depth-first order, so a node's subtree directly follows it.
  struct Node {
    std::uint32_t after;        // the node after this one's subtree
    std::uint32_t first_token;  // index of its first token; its tokens end where the next node's begin
    std::uint32_t depth;        // length in bytes of the text up to this node, at least 1
    std::uint8_t byte;
  };
  const std::vector<Node> &nodes() const { return nodes_; }
  // The tokens that end at a node; several tokens may have the same bytes.
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
