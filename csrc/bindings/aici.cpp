// AICI's programs for Python: wasmtime, compiling, and matchers that run programs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "aici/base/code.h"
#include "aici/base/limits.h"
#include "aici/matcher.h"
#include "bindings/bind.h"
#include "bindings/matcher.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace weft {
namespace {

using namespace aici;

std::string_view view(const nb::bytes &bytes) { return {bytes.c_str(), bytes.size()}; }

// Sets the limit called `name` if `key` names it.
template <class Limit>
bool set(Limit &limit, const char *name, const std::string &key, nb::handle value) {
  if (key != name) return false;
  const auto number = nb::cast<std::int64_t>(value);
  if (number < 1 || (std::is_same_v<Limit, int> && number > 1 << 30))
    raise("InputError", key + " can't be " + std::to_string(number));
  limit = static_cast<Limit>(number);
  return true;
}

Limits limits_of(const nb::dict &values) {
  Limits limits;
  for (auto [key, value] : values) {
    const auto name = nb::cast<std::string>(key);
    if (!set(limits.step_ms, "step_ms", name, value) && !set(limits.start_ms, "start_ms", name, value) &&
        !set(limits.memory_bytes, "memory_bytes", name, value) &&
        !set(limits.stack_bytes, "stack_bytes", name, value) &&
        !set(limits.table_elements, "table_elements", name, value) &&
        !set(limits.log_bytes, "log_bytes", name, value) && !set(limits.result_bytes, "result_bytes", name, value) &&
        !set(limits.variable_bytes, "variable_bytes", name, value) &&
        !set(limits.max_variables, "max_variables", name, value) &&
        !set(limits.undo_bytes, "undo_bytes", name, value) && !set(limits.undo_tokens, "undo_tokens", name, value))
      raise("InputError", "a program has no limit " + name);
  }
  return limits;
}

// Raises GuideError. The process that compiles untrusted modules has no weft package, so it has no GuideError and gets
// another exception.
[[noreturn]] void raise_guide_error(const std::string &problem) {
  try {
    raise("GuideError", problem);
  } catch (nb::python_error &error) {
    if (!error.matches(PyExc_ModuleNotFoundError)) throw;
  }
  throw std::runtime_error(problem);
}

// Runs `body` without the GIL. Its ProgramError becomes a GuideError.
template <class Body>
auto released(Body body) {
  std::string problem;
  {
    nb::gil_scoped_release release;
    try {
      return body();
    } catch (const ProgramError &error) {
      problem = error.what();
    }
  }
  raise_guide_error(problem);
}

}  // namespace

void bind_aici(nb::module_ &m) {
  m.def(
      "aici_bind_wasmtime", [](const std::string &library_path) { return bind_wasmtime(library_path.c_str()); },
      "library_path"_a, nb::call_guard<nb::gil_scoped_release>(),
      "Resolve wasmtime's C functions and test them. Returns an empty text, or the problem.");
  m.def(
      "aici_compile",
      [](const nb::bytes &module) {
        const std::string artefact = released([&] { return Engine::of(Limits{}.stack_bytes).compile(view(module)); });
        return nb::bytes(artefact.data(), artefact.size());
      },
      "module"_a,
      "Compile a module in this process for AiciProgram. Never load an artefact that another user could have made.");
  m.def(
      "aici_table_change", [](const nb::bytes &body) { return released([&] { return table_change(view(body)); }); },
      "body"_a, "The first instruction of a function body that changes a table, or an empty text.");
  m.def(
      "aici_log",
      [](const Matcher &matcher) {
        const std::optional<std::string> log = log_of(matcher.ref->native());
        if (!log) raise("InputError", "the matcher is not a program's");
        return text_of(*log);
      },
      "matcher"_a, "The end of a program's log, drafts included. At any time, on any thread.");

  m.def(
      "aici_undo_bytes", [](const Matcher &matcher) { return undo_bytes_of(matcher.ref->native()); }, "matcher"_a,
      "The bytes kept to roll a program's tokens back. 0 for any other matcher.");

  nb::class_<Variables>(m, "AiciVariables", "The variables that the sequences of one request share.")
      .def(nb::init<>())
      .def(
          "get",
          [](Variables &self, const std::string &name) -> std::optional<std::pair<std::uint64_t, nb::bytes>> {
            const auto value = self.get(name);
            if (!value) return std::nullopt;
            return std::make_pair(value->version, nb::bytes(value->bytes->data(), value->bytes->size()));
          },
          "name"_a, "A variable's version and value, or None.");
  nb::class_<Program>(m, "AiciProgram", "A compiled program for one vocabulary. It starts matchers.")
      .def(
          "__init__",
          [](Program *self, const nb::bytes &artefact, const nb::bytes &trie, int num_tokens,
             std::vector<std::int32_t> end_ids, std::shared_ptr<TokenTexts> texts, const nb::dict &limits) {
            const Limits parsed = limits_of(limits);
            released([&] {
              new (self) Program(view(artefact), std::string(view(trie)), num_tokens, std::move(end_ids),
                                 std::move(texts), parsed);
              return 0;
            });
          },
          "artefact"_a, "trie"_a, "num_tokens"_a, "end_ids"_a, "texts"_a, "limits"_a,
          "From an artefact of aici_compile. Raises GuideError for a module with unknown imports.")
      .def(
          "start",
          [](std::shared_ptr<Program> self, const nb::bytes &arg, const std::vector<std::int32_t> &prompt,
             std::shared_ptr<Variables> variables) {
            return wrap(released([&] {
              if (!variables) variables = std::make_shared<Variables>();
              return start_matcher(self, std::string(view(arg)), prompt, variables);
            }));
          },
          "arg"_a, "prompt"_a, "variables"_a.none() = nb::none(),
          "A matcher at its start, after the program has seen the prompt. Raises GuideError if the program fails.");
}

}  // namespace weft
