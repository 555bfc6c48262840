// Free text before a guide, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>

#include "bindings/bind.h"
#include "bindings/matcher.h"
#include "grammar/after/rules.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace weft {

void bind_after(nb::module_ &m) {
  nb::class_<AfterRules>(m, "AfterRules", "Where free text ends: at a token, or after a text.")
      .def(
          "__init__",
          [](AfterRules *self, std::shared_ptr<TokenTexts> texts, int vocab_size, std::int32_t token) {
            new (self) AfterRules(std::move(texts), vocab_size, token);
          },
          "texts"_a, "vocab_size"_a, "token"_a)
      .def(
          "__init__",
          [](AfterRules *self, std::shared_ptr<TokenTexts> texts, int vocab_size, const nb::bytes &trigger) {
            if (trigger.size() < 1 || trigger.size() > AfterRules::kMaxTriggerBytes)
              throw nb::value_error("a trigger has 1 to 256 bytes");
            new (self) AfterRules(std::move(texts), vocab_size, std::string(trigger.c_str(), trigger.size()));
          },
          "texts"_a, "vocab_size"_a, "trigger"_a)
      .def(
          "settle",
          [](AfterRules &self, Matcher &guide) {
            const std::string error = called(guide, [&] { return self.settle(*guide.ref); });
            if (!error.empty()) raise("GuideError", "the guide after the trigger can't begin: " + error);
          },
          "guide"_a, "Look up, once, which tokens may hold the trigger's end, with a matcher at its start.")
      .def("can_end", &AfterRules::can_end)
      .def("can_be_forced", &AfterRules::can_be_forced)
      .def_prop_ro("memory_bytes", &AfterRules::memory_bytes);

  m.def(
      "after_matcher",
      [](std::shared_ptr<AfterRules> rules, Matcher &guide, int max_free_tokens) {
        return wrap(after_matcher(std::move(rules), guide.ref, max_free_tokens), guide.needs_python);
      },
      "rules"_a, "guide"_a, "max_free_tokens"_a,
      "A matcher of free text and then of `guide`, which nothing else may use. A negative number of free tokens: no "
      "limit.");
}

}  // namespace weft
