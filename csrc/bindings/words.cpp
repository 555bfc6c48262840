// Searches in texts and tokens, for Python: finding words, and measuring the depth of brackets.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "support/json_depth.h"
#include "support/word_automaton.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace weft {
namespace {

void check_state(const WordAutomaton &automaton, std::int32_t state) {
  if (state < 0 || static_cast<std::size_t>(state) >= automaton.num_states()) throw nb::value_error("no such state");
}

}  // namespace

void bind_words(nb::module_ &m) {
  m.def(
      "json_depth",
      [](std::string_view text) {
        nb::gil_scoped_release release;
        return json_depth(text);
      },
      "text"_a, "How deep brackets nest in JSON text.");
  nb::class_<WordAutomaton>(m, "WordAutomaton",
                            "Which of many words a text ends with, over texts or token ids. A text that nothing is "
                            "known of is in state 0.")
      .def_static(
          "of_texts",
          [](const std::vector<std::string_view> &words) {
            for (const std::string_view word : words)
              if (word.empty()) throw nb::value_error("a word is empty");
            nb::gil_scoped_release release;
            return WordAutomaton::of_texts(words);
          },
          "words"_a)
      .def_static(
          "of_tokens",
          [](const std::vector<std::vector<std::uint32_t>> &words) {
            nb::gil_scoped_release release;
            std::vector<WordAutomaton::Symbol> symbols;
            std::vector<std::uint32_t> starts{0};
            for (const auto &word : words) {
              if (word.empty()) throw nb::value_error("a word is empty");
              symbols.insert(symbols.end(), word.begin(), word.end());
              starts.push_back(static_cast<std::uint32_t>(symbols.size()));
            }
            return WordAutomaton(symbols, starts);
          },
          "words"_a)
      .def(
          "find",
          [](const WordAutomaton &self, std::int32_t state, std::string_view text, std::string_view seen) {
            check_state(self, state);
            const WordAutomaton::Found found = self.find(state, text, seen);
            return std::tuple(found.state, found.word, found.begin);
          },
          "state"_a, "text"_a, "seen"_a = "",
          "A text in `state` goes on with `text`: its state then, the word (-1: none) that ends after what `text`\n"
          "shares with `seen` and begins first, of those the shortest, and the character of `text` that it begins\n"
          "at, which is negative before `text`.")
      .def(
          "step",
          [](const WordAutomaton &self, std::int32_t state, std::uint32_t token) {
            check_state(self, state);
            const std::int32_t next = self.next(state, token);
            return std::tuple(next, self.first_word(next));
          },
          "state"_a, "token"_a, "The state after one more token, and the first word (-1: none) that ends there.")
      .def(
          "num_open",
          [](const WordAutomaton &self, std::int32_t state) {
            check_state(self, state);
            return self.num_open(state);
          },
          "state"_a, "Characters at the end of a text in `state` that may become a word.")
      .def_prop_ro("memory_bytes", &WordAutomaton::memory_bytes);
}

}  // namespace weft
