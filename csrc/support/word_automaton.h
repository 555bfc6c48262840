// Finds the words that a text ends with, among many: the Aho-Corasick automaton, over bytes or token ids. Python-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace weft {

// Construction sorts the words, and is then linear in their total length. A search is linear in the text, apart from a
// binary search among the children of each state. Immutable, so any number of texts and threads share one.
class WordAutomaton {
 public:
  using Symbol = std::uint32_t;
  static constexpr std::int32_t kNone = -1;

  // Word i is symbols[starts[i]] up to symbols[starts[i + 1]]; none is empty.
  WordAutomaton(const std::vector<Symbol> &symbols, const std::vector<std::uint32_t> &starts);
  static WordAutomaton of_texts(const std::vector<std::string_view> &words);

  // Returns the state of a text after one more symbol. An empty text, or one with an unknown beginning, is in state 0.
  std::int32_t next(std::int32_t state, Symbol symbol) const;

  // Return the longest word that a text in this state ends with, and the first such word in the constructor's order.
  // kNone if there is none.
  std::int32_t longest_word(std::int32_t state) const { return states_[index(state)].longest; }
  std::int32_t first_word(std::int32_t state) const { return states_[index(state)].first; }

  // Searches `text`, which continues a UTF-8 text in `state`. The prefix that it shares with `seen` was searched
  // before, so only words that end after that prefix count. Among these it finds the word that begins first, and the
  // shortest of several. `begin` is in characters from the start of `text`, and negative if the word begins before it.
  struct Found {
    std::int32_t state, word;
    std::int64_t begin;
  };
  Found find(std::int32_t state, std::string_view text, std::string_view seen) const;

  // Returns the number of characters at the end of a text in this state that may be the beginning of a word. A complete
  // word of the greatest length cannot grow, so it does not count.
  std::int64_t num_open(std::int32_t state) const;

  std::size_t num_states() const { return states_.size() - 1; }
  std::size_t memory_bytes() const;

 private:
  // States are numbered breadth first, so a state's children are consecutive and end where the next state's begin. A
  // sentinel follows the last state.
  struct State {
    std::uint32_t children;        // the first
    Symbol symbol;                 // the symbol on the edge to this state
    std::int32_t fallback = 0;     // the state of the longest proper suffix that is a prefix of a word
    std::int32_t longest = kNone;  // word
    std::int32_t first = kNone;    // word
    std::uint32_t characters = 0;  // from the beginning of a word up to here, where symbols are bytes
  };
  static std::size_t index(std::int32_t state) { return static_cast<std::size_t>(state); }

  std::int32_t child(std::int32_t state, Symbol symbol) const;
  void grow(const std::vector<Symbol> &symbols, const std::vector<std::uint32_t> &starts);
  void link();

  std::vector<State> states_;              // and a sentinel
  std::vector<std::uint32_t> characters_;  // of each word
  std::uint32_t max_characters_ = 0;
};

}  // namespace weft
