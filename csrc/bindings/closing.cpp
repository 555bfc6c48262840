// Matchers that bound the length of an answer, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/matcher.h"
#include "grammar/closing/chart.h"
#include "grammar/closing/matcher.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace weft {
namespace {

ClosingGrammar::Element element_of(const nb::tuple &given) {
  ClosingGrammar::Element element;
  element.rule = nb::cast<int>(given[0]);
  const auto data = nb::cast<nb::bytes>(given[1]);
  element.min_times = nb::cast<int>(given[2]);
  element.max_times = nb::cast<int>(given[3]);
  const std::string text(data.c_str(), data.size());
  if (element.rule == -1) element.bytes = text;
  if (element.rule < -1)
    for (std::size_t byte = 0; byte < 256 && byte / 8 < text.size(); ++byte)
      element.set[byte] = static_cast<unsigned char>(text[byte / 8]) >> (byte % 8) & 1u;
  return element;
}

std::vector<ClosingGrammar::Rule> rules_of(const nb::list &given) {
  std::vector<ClosingGrammar::Rule> rules;
  for (nb::handle rule : given) {
    rules.emplace_back();
    for (nb::handle alternative : nb::cast<nb::list>(rule)) {
      rules.back().emplace_back();
      for (nb::handle element : nb::cast<nb::list>(alternative))
        rules.back().back().push_back(element_of(nb::cast<nb::tuple>(element)));
    }
  }
  return rules;
}

}  // namespace

void bind_closing(nb::module_ &m) {
  nb::class_<ClosingTables>(m, "ClosingTables",
                            "The number of tokens to an end, for each place of a grammar over bytes.")
      .def(
          "__init__",
          [](ClosingTables *self, const nb::list &given, std::shared_ptr<TokenTexts> texts, int vocab_size,
             const std::vector<std::int32_t> &end_tokens) {
            const std::vector<ClosingGrammar::Rule> rules = rules_of(given);
            ClosingTables tables;
            {
              nb::gil_scoped_release release;
              tables.grammar = std::make_shared<const ClosingGrammar>(rules, std::move(texts));
              tables.growth = std::make_shared<const ClosingGrowth>(*tables.grammar, vocab_size, end_tokens);
            }
            new (self) ClosingTables(std::move(tables));
          },
          "rules"_a, "texts"_a, "vocab_size"_a, "end_tokens"_a,
          "Made from rules, the root first. A rule is a list of alternatives; an alternative is a list of elements\n"
          "(rule, data, min_times, max_times). Rule -1 is literal text, -2 one byte of a set of 256 bits.")
      .def_prop_ro("num_bytes",
                   [](const ClosingTables &self) { return self.grammar->num_bytes() + self.growth->num_bytes(); })
      .def(
          "shortest",
          [](const ClosingTables &self, const nb::bytes &text) -> std::optional<std::tuple<int, int, nb::bytes>> {
            ClosingChart chart(self.grammar);
            ClosingChart::StateRef state;
            if (chart.advance(*chart.start(), {text.c_str(), text.size()}, state) != ClosingChart::Outcome::kTaken)
              return std::nullopt;
            std::string end;
            std::vector<std::int32_t> tokens;
            if (state->cheapest < ClosingGrammar::kNever) chart.spell(*state, end, tokens);
            return std::tuple(state->cheapest, state->dearest, nb::bytes(end.data(), end.size()));
          },
          "text"_a,
          "The costs of the cheapest and of the costliest reading of a text, in tokens to an end, and the shortest\n"
          "end; None if the grammar refuses the text.");
  m.def(
      "closing_matcher",
      [](const Matcher &inner, const ClosingTables &tables, int room) {
        void *forked = called(inner, [&] { return inner.ref->fork(); });
        if (!forked) raise("GuideStateError", inner.ref->error());
        std::string error;
        int needed = 0;
        const weft_matcher made =
            called(inner, [&] { return closing_matcher({inner.ref->ops(), forked}, tables, room, error, needed); });
        std::optional<Matcher> matcher;
        if (made.ops) matcher = wrap(made, inner.needs_python);
        return std::make_tuple(std::move(matcher), text_of(error), needed);
      },
      "inner"_a, "tables"_a, "room"_a,
      "A matcher that ends within `room` tokens, or None; the reason for None; and the length of the shortest\n"
      "answer (0: unknown).");
}

}  // namespace weft
