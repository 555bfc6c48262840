// The word automaton, compared with a search for each word alone. Sanitizers check the bounds.
#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "support/word_automaton.h"

namespace {

using weft::WordAutomaton;

const std::vector<std::string> kLetters{"a", "b", "\xC3\xA9", "\xC3\xA8", "\xE6\x97\xA5"};

std::string spelled(const std::vector<int> &letters) {
  std::string text;
  for (int letter : letters) text += kLetters[static_cast<std::size_t>(letter)];
  return text;
}

std::vector<int> some_letters(std::mt19937 &random, std::size_t most) {
  std::vector<int> letters(1 + random() % most);
  for (int &letter : letters) letter = static_cast<int>(random() % 10 < 6 ? random() % 2 : random() % 5);
  return letters;
}

bool ends_with(const std::vector<int> &text, const std::vector<int> &word) {
  return word.size() <= text.size() && std::equal(word.rbegin(), word.rend(), text.rbegin());
}

// Returns the length of the longest suffix of `text` that is a prefix of a word. A word of the greatest length does not
// count if it is complete.
std::size_t naive_open(const std::vector<int> &text, const std::vector<std::vector<int>> &words) {
  std::size_t longest = 0;
  for (const auto &word : words) longest = std::max(longest, word.size());
  for (std::size_t length = std::min(longest - 1, text.size()); length > 0; --length)
    for (const auto &word : words)
      if (length <= word.size() &&
          std::equal(text.end() - static_cast<std::ptrdiff_t>(length), text.end(), word.begin()))
        return length;
  return 0;
}

TEST_CASE("a text is read as if each word were looked for") {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::vector<int>> words(1 + random() % 8);
    std::vector<std::string> spellings;
    for (auto &word : words) spellings.push_back(spelled(word = some_letters(random, 1 + random() % 6)));
    const WordAutomaton automaton = WordAutomaton::of_texts({spellings.begin(), spellings.end()});
    std::vector<int> text;
    std::int32_t state = 0;
    for (int piece = 0; piece < 12; ++piece) {
      const std::vector<int> more = some_letters(random, 5);
      const std::size_t seen = random() % (more.size() + 1);
      const std::string all = spelled(more), known = spelled({more.begin(), more.begin() + static_cast<int>(seen)});
      const WordAutomaton::Found found = automaton.find(state, all, known + (random() % 2 ? "\xC3\xAA" : ""));
      const auto before = static_cast<std::int64_t>(text.size());
      bool is_there = false;
      std::int64_t begin = 0;
      std::string_view word;
      for (std::size_t at = 0; at < more.size(); ++at) {
        text.push_back(more[at]);
        for (std::size_t w = 0; w < words.size() && at >= seen; ++w) {
          const auto start = static_cast<std::int64_t>(text.size() - words[w].size()) - before;
          if (!ends_with(text, words[w]) || (is_there && start >= begin)) continue;
          is_there = true, begin = start, word = spellings[w];
        }
      }
      CHECK((found.word != WordAutomaton::kNone) == is_there);
      if (is_there) {
        CHECK(found.begin == begin);
        CHECK(spellings[static_cast<std::size_t>(found.word)] == word);
      }
      state = found.state;
      CHECK(automaton.num_open(state) == static_cast<std::int64_t>(naive_open(text, words)));
    }
  }
}

TEST_CASE("of the sequences that end somewhere the first is told") {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::vector<int>> words(1 + random() % 8);
    std::vector<WordAutomaton::Symbol> symbols;
    std::vector<std::uint32_t> starts{0};
    for (auto &word : words) {
      word = some_letters(random, 4);
      for (int token : word) symbols.push_back(static_cast<std::uint32_t>(token) * 100'000);
      starts.push_back(static_cast<std::uint32_t>(symbols.size()));
    }
    const WordAutomaton automaton(symbols, starts);
    CHECK(automaton.num_states() <= symbols.size() + 1);
    std::vector<int> text;
    std::int32_t state = 0;
    for (int step = 0; step < 60; ++step) {
      text.push_back(static_cast<int>(random() % 5));
      state = automaton.next(state, static_cast<std::uint32_t>(text.back()) * 100'000);
      const auto first = std::find_if(words.begin(), words.end(), [&](const auto &w) { return ends_with(text, w); });
      const auto expected = first == words.end() ? -1 : static_cast<std::int32_t>(first - words.begin());
      CHECK(automaton.first_word(state) == expected);
    }
  }
}

TEST_CASE("no words are never found") {
  const WordAutomaton automaton({}, {0});
  CHECK(automaton.next(0, 7) == 0);
  CHECK(automaton.first_word(0) == WordAutomaton::kNone);
  CHECK(automaton.num_open(0) == 0);
}

}  // namespace
