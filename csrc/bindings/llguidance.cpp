// LLGuidance for Python: vocabularies, grammars and matchers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/matcher.h"
#include "grammar/llguidance/matcher.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace weft {

void bind_llguidance(nb::module_ &m) {
  m.def(
      "llguidance_bind", [](const std::string &library_path) { return llguidance_bind(library_path.c_str()); },
      "library_path"_a, "Resolve LLGuidance's C interface; what is missing, or an empty text.");

  nb::class_<LlguidanceLimits>(m, "LlguidanceLimits", "Limits on compiling and on one mask; 0: LLGuidance's default.")
      .def(
          "__init__",
          [](LlguidanceLimits *self, std::size_t max_items_in_row, std::size_t step_max_items,
             std::size_t max_lexer_states, std::size_t max_grammar_size, std::uint64_t initial_lexer_fuel,
             std::uint64_t step_lexer_fuel, bool keeps_states) {
            new (self) LlguidanceLimits{max_items_in_row,   step_max_items,  max_lexer_states, max_grammar_size,
                                        initial_lexer_fuel, step_lexer_fuel, keeps_states};
          },
          nb::kw_only(), "max_items_in_row"_a = 0, "step_max_items"_a = 0, "max_lexer_states"_a = 0,
          "max_grammar_size"_a = 0, "initial_lexer_fuel"_a = 0, "step_lexer_fuel"_a = 0, "keeps_states"_a = true);

  nb::class_<LlguidanceVocabulary>(m, "LlguidanceVocabulary", "LLGuidance's view of a vocabulary.")
      .def(
          "__init__",
          [](LlguidanceVocabulary *self, const nb::sequence &tokens, std::vector<std::int32_t> end_tokens,
             std::shared_ptr<TokenTexts> texts) {
            std::vector<std::string> bytes;
            bytes.reserve(nb::len(tokens));
            for (nb::handle token : tokens) {
              const auto text = nb::cast<nb::bytes>(token);
              bytes.emplace_back(text.c_str(), text.size());
            }
            nb::gil_scoped_release release;
            new (self) LlguidanceVocabulary(bytes, std::move(end_tokens), std::move(texts));
          },
          "tokens"_a, "end_tokens"_a, "texts"_a,
          "From the bytes of each id, b\"\" for special and unused ones; `texts` spells forced text.");

  nb::class_<LlguidanceGrammar>(m, "LlguidanceGrammar", "A grammar that LLGuidance compiled for a vocabulary.")
      .def(
          "__init__",
          [](LlguidanceGrammar *self, std::shared_ptr<LlguidanceVocabulary> vocabulary, const std::string &type,
             const std::string &text, const LlguidanceLimits &limits) {
            std::string refusal;
            {
              nb::gil_scoped_release release;
              try {
                new (self) LlguidanceGrammar(std::move(vocabulary), type, text, limits);
              } catch (const LlguidanceRefusal &refused) {
                refusal = refused.what();
              }
            }
            if (!refusal.empty()) raise("GuideError", refusal);
          },
          "vocabulary"_a, "type"_a, "text"_a, "limits"_a,
          "Compile; `type` is \"json_schema\", \"regex\" or \"lark\". Raises GuideError.")
      .def(
          "matcher",
          [](LlguidanceGrammar &self) {
            const auto made = [&] {
              nb::gil_scoped_release release;
              return self.matcher();
            };
            return wrap(made());
          },
          "A new matcher at the start.");
}

}  // namespace weft
