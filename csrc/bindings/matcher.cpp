// Matchers for Python, and functions that make matchers of several kinds.
#include "bindings/matcher.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aici/matcher.h"
#include "bindings/bind.h"
#include "grammar/python/wrap.h"
#include "grammar/xgrammar/matcher.h"
#include "grammar/xgrammar/warnings.h"
#include "matcher/forced_text.h"
#include "matcher/walk.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace weft {
namespace {

using Row = nb::ndarray<std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

int checked(const Matcher &matcher, int outcome) {
  if (outcome < 0) raise("GuideStateError", matcher.ref->error());
  return outcome;
}

void bind_token_texts(nb::module_ &m) {
  nb::class_<TokenTexts>(m, "TokenTexts", "The tokens of a vocabulary by their bytes; spells forced text.")
      .def(
          "__init__",
          [](TokenTexts *self, const nb::sequence &tokens) {
            std::vector<std::string> texts;
            texts.reserve(nb::len(tokens));
            for (nb::handle token : tokens) {
              const auto bytes = nb::cast<nb::bytes>(token);
              texts.emplace_back(bytes.c_str(), bytes.size());
            }
            new (self) TokenTexts(texts);
          },
          "tokens"_a, "From the bytes of each id, b\"\" for special and unused ones.")
      .def(
          "encode",
          [](const TokenTexts &self, const nb::bytes &text) {
            std::vector<std::int32_t> tokens(TokenTexts::kMaxBytes);
            tokens.resize(static_cast<std::size_t>(self.encode({text.c_str(), text.size()}, tokens.data())));
            return tokens;
          },
          "text"_a, "The tokens of a text's first 256 bytes, by byte-pair merging.");
}

void bind_matcher_class(nb::module_ &m) {
  nb::class_<Matcher>(m, "Matcher", "Follows one sequence of tokens. Used by one thread at a time.")
      .def(
          "accept",
          [](Matcher &self, std::int32_t token) {
            const int outcome = checked(self, called(self, [&] { return self.ref->accept(token); }));
            self.ref->position += outcome > 0;
            self.ref->has_edit = outcome == 2;
            return outcome > 0;
          },
          "token"_a, "Take a token; False if it is refused, with the state unchanged.")
      .def(
          "validate",
          [](Matcher &self, const std::vector<std::int32_t> &tokens) {
            const auto count = static_cast<int>(tokens.size());
            return checked(self, called(self, [&] { return self.ref->validate(tokens.data(), count); }));
          },
          "tokens"_a, "How many of the tokens would be taken one after another; the state does not change.")
      .def(
          "fill",
          [](Matcher &self, Row row) {
            std::int32_t *data = row.data();
            const auto words = static_cast<int>(row.shape(0));
            return checked(self, called(self, [&] { return self.ref->fill(data, words); })) == 1;
          },
          "row"_a.noconvert(), "Write the mask of what may follow, int32 [words]; False where nothing is blocked.")
      .def(
          "rollback",
          [](Matcher &self, int count) {
            checked(self, called(self, [&] { return self.ref->rollback(count); }));
            self.ref->position -= count;
          },
          "count"_a = 1, "Take back the last tokens.")
      .def(
          "fork",
          [](Matcher &self) {
            void *forked = called(self, [&] { return self.ref->fork(); });
            if (!forked) raise("GuideStateError", self.ref->error());
            Matcher fork = wrap({self.ref->ops(), forked}, self.needs_python);
            fork.ref->position = self.ref->position;
            fork.ref->misplaced = self.ref->misplaced;
            return fork;
          },
          "An independent matcher in the same state.")
      .def(
          "reset",
          [](Matcher &self) {
            checked(self, called(self, [&] { return self.ref->reset(); }));
            self.ref->position = 0;
            self.ref->misplaced.clear();
          },
          "Back to the start.")
      .def(
          "forced",
          [](Matcher &self, int capacity) {
            std::vector<std::int32_t> tokens(static_cast<std::size_t>(capacity > 0 ? capacity : 0));
            const int count = checked(self, called(self, [&] { return self.ref->forced(tokens.data(), capacity); }));
            tokens.resize(static_cast<std::size_t>(count));
            return tokens;
          },
          "capacity"_a, "A guess of tokens that spell what must follow whatever is sampled; the state does not change.")
      .def(
          "walk",
          [](Matcher &self, const std::vector<std::int32_t> &tokens, Row row, bool timed) {
            std::int32_t *data = row.data();
            const auto words = static_cast<int>(row.shape(0));
            const Walk done = called(self, [&] { return walk(*self.ref, tokens, data, words, timed); });
            checked(self, done.failed ? -1 : 0);
            return nb::make_tuple(done.taken, done.disagreements, done.fill_ns, done.accept_ns);
          },
          "tokens"_a, "row"_a.noconvert(), "timed"_a = false,
          "Fill a mask and take a token, one after another. Returns the number of tokens taken, the number for\n"
          "which mask and accept disagree, and the ns of each call.")
      .def(
          "temperature",
          [](Matcher &self) -> std::optional<float> {
            const float temperature = self.ref->temperature();
            return temperature < 0 ? std::nullopt : std::optional<float>(temperature);
          },
          "The temperature for the next token; None: the request's own.")
      .def(
          "edit",
          [](Matcher &self, int capacity) {
            int drop = 0;
            std::vector<std::int32_t> append(static_cast<std::size_t>(capacity > 0 ? capacity : 0));
            append.resize(static_cast<std::size_t>(checked(self, self.ref->edit(&drop, append.data(), capacity))));
            self.ref->position += static_cast<std::int64_t>(append.size()) - drop;
            return std::make_pair(drop, std::move(append));
          },
          "capacity"_a,
          "The edit after the last token, where `has_edit`: drop this many of the last tokens, then append these.")
      .def_prop_ro(
          "has_edit", [](Matcher &self) { return self.ref->has_edit; },
          "Whether the last `accept` asks for an edit of the text.")
      .def(
          "report",
          [](const Matcher &self, std::int64_t num_tokens) -> nb::object {
            std::optional<aici::Report> report;
            {
              nb::gil_scoped_release release;  // it may wait for a step of the program
              report = aici::report_of(self.ref->native(), num_tokens);
            }
            if (!report) return nb::none();
            nb::dict variables;
            for (const auto &[name, value] : report->variables)
              variables[nb::str(name.data(), name.size())] = nb::bytes(value.bytes->data(), value.bytes->size());
            return nb::make_tuple(text_of(report->log), variables);
          },
          nb::sig("def report(self, num_tokens: int) -> tuple[str, dict[str, bytes]] | None"),
          "The log and the variables that a program wrote in the first `num_tokens` tokens of its answer. None for a\n"
          "matcher that is no program. At any time, on any thread.")
      .def("is_terminated", [](Matcher &self) { return self.ref->is_terminated(); })
      .def_prop_ro(
          "slot", [](Matcher &self) { return self.ref->slot; }, "The slot it is attached to, or -1.")
      .def_prop_ro(
          "serial", [](Matcher &self) { return self.ref->serial; }, "No other matcher of the process has it.")
      .def_prop_ro(
          "position", [](Matcher &self) { return self.ref->position; },
          "The number of tokens taken for good. While it has a slot, the number when it got the slot.");
}

void bind_makers(nb::module_ &m) {
  m.def(
      "python_matcher",
      [](nb::object object, nb::object factory) {
        return wrap(python_matcher(std::move(object), std::move(factory)), true);
      },
      "object"_a, "factory"_a = nb::none(),
      "A matcher over a Python object with accept, fill and is_terminated, and rollback, reset or a factory.");
  m.def("hush_xgrammar", &hush_xgrammar, "Keep XGrammar's warnings from standard error, from now on.");
  m.def(
      "xgrammar_bind",
      [](const std::string &tvm_ffi_path, const std::string &xgrammar_path) {
        return xgrammar_bind(tvm_ffi_path.c_str(), xgrammar_path.c_str());
      },
      "tvm_ffi_path"_a, "xgrammar_path"_a, "Resolve XGrammar's C interface; what is missing, or an empty text.");
  m.def(
      "xgrammar_matcher",
      [](std::uintptr_t handle, int vocab_size, std::vector<std::int32_t> end_tokens,
         std::shared_ptr<TokenTexts> texts) {
        return wrap(xgrammar_matcher(reinterpret_cast<void *>(handle), vocab_size, std::move(end_tokens), texts));
      },
      "handle"_a, "vocab_size"_a, "end_tokens"_a, "texts"_a.none() = nb::none(),
      "A matcher over an xgrammar GrammarMatcher's handle; `texts` spells forced text.");
}

}  // namespace

void bind_matcher(nb::module_ &m) {
  bind_token_texts(m);
  bind_matcher_class(m);
  bind_makers(m);
}

}  // namespace weft
