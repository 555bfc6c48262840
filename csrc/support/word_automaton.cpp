#include "support/word_automaton.h"

#include <algorithm>
#include <numeric>

namespace weft {
namespace {

bool begins_character(WordAutomaton::Symbol byte) { return (byte & 0xC0u) != 0x80u; }

// The length in bytes of the common prefix of two texts, in whole characters.
std::size_t shared(std::string_view text, std::string_view seen) {
  const std::size_t limit = std::min(text.size(), seen.size());
  std::size_t count =
      static_cast<std::size_t>(std::mismatch(text.begin(), text.begin() + limit, seen.begin()).first - text.begin());
  while (count > 0 && count < text.size() && !begins_character(static_cast<unsigned char>(text[count]))) --count;
  return count;
}

}  // namespace

WordAutomaton::WordAutomaton(const std::vector<Symbol> &symbols, const std::vector<std::uint32_t> &starts) {
  grow(symbols, starts);
  link();
}

WordAutomaton WordAutomaton::of_texts(const std::vector<std::string_view> &words) {
  std::vector<Symbol> symbols;
  std::vector<std::uint32_t> starts{0};
  for (const std::string_view word : words) {
    for (const char byte : word) symbols.push_back(static_cast<unsigned char>(byte));
    starts.push_back(static_cast<std::uint32_t>(symbols.size()));
  }
  return WordAutomaton(symbols, starts);
}

// Builds the trie of the sorted words: a state is the range of words that share a prefix.
void WordAutomaton::grow(const std::vector<Symbol> &symbols, const std::vector<std::uint32_t> &starts) {
  const std::size_t count = starts.size() - 1;
  std::vector<std::int32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  const auto begin_of = [&](std::int32_t word) { return symbols.begin() + starts[index(word)]; };
  const auto end_of = [&](std::int32_t word) { return symbols.begin() + starts[index(word) + 1]; };
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t left, std::int32_t right) {
    return std::lexicographical_compare(begin_of(left), end_of(left), begin_of(right), end_of(right));
  });

  struct Range {
    std::size_t low, high;
    std::uint32_t depth;
  };
  std::vector<Range> ranges{{0, count, 0}};
  states_.push_back({});
  for (std::size_t at = 0; at < ranges.size(); ++at) {  // the loop appends to it
    auto [low, high, depth] = ranges[at];
    states_[at].children = static_cast<std::uint32_t>(states_.size());
    if (low < high && begin_of(order[low]) + depth == end_of(order[low])) {
      states_[at].longest = states_[at].first = order[low];
      while (low < high && begin_of(order[low]) + depth == end_of(order[low])) ++low;  // a duplicate of the word
    }
    while (low < high) {
      const Symbol symbol = *(begin_of(order[low]) + depth);
      std::size_t next = low;
      while (next < high && *(begin_of(order[next]) + depth) == symbol) ++next;
      State child{};
      child.symbol = symbol;
      child.characters = states_[at].characters + begins_character(symbol);
      states_.push_back(child);
      ranges.push_back({low, next, depth + 1});
      low = next;
    }
  }
  State sentinel{};
  sentinel.children = static_cast<std::uint32_t>(states_.size());
  states_.push_back(sentinel);

  for (std::size_t word = 0; word < count; ++word) {
    const auto number = static_cast<std::int32_t>(word);
    characters_.push_back(
        static_cast<std::uint32_t>(std::count_if(begin_of(number), end_of(number), begins_character)));
    max_characters_ = std::max(max_characters_, characters_.back());
  }
}

// Links each state to its fallback. A fallback is less deep than its state, so in breadth-first order it is already
// linked.
void WordAutomaton::link() {
  for (std::size_t at = 0; at + 1 < states_.size(); ++at) {
    for (std::uint32_t child = states_[at].children; child < states_[at + 1].children; ++child) {
      State &state = states_[child];
      if (at != 0) state.fallback = next(states_[at].fallback, state.symbol);
      const State &fallback = states_[index(state.fallback)];
      if (state.longest == kNone) state.longest = fallback.longest;
      if (state.first == kNone || (fallback.first != kNone && fallback.first < state.first))
        state.first = fallback.first;
    }
  }
}

std::int32_t WordAutomaton::child(std::int32_t state, Symbol symbol) const {
  const auto first = states_.begin() + states_[index(state)].children;
  const auto last = states_.begin() + states_[index(state) + 1].children;
  const auto at =
      std::lower_bound(first, last, symbol, [](const State &left, Symbol right) { return left.symbol < right; });
  return at != last && at->symbol == symbol ? static_cast<std::int32_t>(at - states_.begin()) : kNone;
}

std::int32_t WordAutomaton::next(std::int32_t state, Symbol symbol) const {
  for (;; state = states_[index(state)].fallback) {
    const std::int32_t to = child(state, symbol);
    if (to != kNone) return to;
    if (state == 0) return 0;
  }
}

WordAutomaton::Found WordAutomaton::find(std::int32_t state, std::string_view text, std::string_view seen) const {
  Found match{state, kNone, 0};
  const std::size_t skipped = shared(text, seen);
  std::int64_t characters = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    characters += begins_character(byte);
    match.state = next(match.state, byte);
    const std::int32_t word = longest_word(match.state);
    if (word == kNone || at < skipped) continue;
    const std::int64_t begin = characters - characters_[index(word)];
    if (match.word == kNone || begin < match.begin) match.word = word, match.begin = begin;
  }
  return match;
}

std::int64_t WordAutomaton::num_open(std::int32_t state) const {
  while (state != 0 && states_[index(state)].characters >= max_characters_) state = states_[index(state)].fallback;
  return states_[index(state)].characters;
}

std::size_t WordAutomaton::memory_bytes() const {
  return sizeof *this + states_.size() * sizeof states_[0] + characters_.size() * sizeof characters_[0];
}

}  // namespace weft
