// Which of many words a text ends with: Aho and Corasick's automaton, over bytes or token ids. Python-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace weft {

// Made in a time that grows with the words' length, whatever they are; never changes, so that any number of texts and
// threads share one. A text is read in a time that grows with its own length, however many words there are.
class WordAutomaton {
 public:
  using Symbol = std::uint32_t;
  static constexpr std::int32_t kNone = -1;

  // Word i is symbols[starts[i]] up to symbols[starts[i + 1]]; none is empty.
  WordAutomaton(const std::vector<Symbol> &symbols, const std::vector<std::uint32_t> &starts);
  static WordAutomaton of_texts(const std::vector<std::string_view> &words);

  // A text that nothing is known of is in state 0. The state of a text with one more symbol:
  std::int32_t next(std::int32_t state, Symbol symbol) const;

  // The longest of the words that a text in this state ends with, and the first of those given; kNone without one.
  std::int32_t longest_word(std::int32_t state) const { return states_[index(state)].longest; }
  std::int32_t first_word(std::int32_t state) const { return states_[index(state)].first; }

  // A text in UTF-8 goes on with `text`, of which as much has been read before as it shares with `seen`. Of the words
  // that end in the rest, the one that begins first, and of those the shortest; `begin` counts characters from where
  // `text` begins, and is negative before that.
  struct Found {
    std::int32_t state, word;
    std::int64_t begin;
  };
  Found find(std::int32_t state, std::string_view text, std::string_view seen) const;

  // How many characters at the end of a text in this state may become a word; all of the longest word are one already.
  std::int64_t num_open(std::int32_t state) const;

  std::size_t num_states() const { return states_.size() - 1; }
  std::size_t memory_bytes() const;

 private:
  // States are numbered breadth first, so that a state's children follow one another; those of the last one end at the
  // sentinel's.
  struct State {
    std::uint32_t children;        // the first
    Symbol symbol;                 // that leads here
    std::int32_t fallback = 0;     // the longest other end of the text that words begin with
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
  std::uint32_t most_characters_ = 0;
};

}  // namespace weft
