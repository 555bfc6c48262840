// Programs for Python: wasmtime's library, compiling, and matchers that run programs.
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

#include "bindings/bind.h"
#include "bindings/matcher.h"
#include "aici/base/code.h"
#include "aici/base/error.h"
#include "aici/matcher.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace weft {
namespace {

std::string_view view(const nb::bytes &bytes) { return {bytes.c_str(), bytes.size()}; }

template <class Limit>
bool set(Limit &limit, const char *name, const std::string &key, nb::handle value) {
  if (key != name) return false;
  const auto given = nb::cast<std::int64_t>(value);
  if (given < 1 || (std::is_same_v<Limit, int> && given > 1 << 30))
    raise("InputError", key + " can't be " + std::to_string(given));
  limit = static_cast<Limit>(given);
  return true;
}

WasmLimits limits_of(const nb::dict &given) {
  WasmLimits limits;
  for (auto [key, value] : given) {
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

// A process that only compiles has no weft package, and so no GuideError.
[[noreturn]] void raise_guide_error(const std::string &problem) {
  try {
    raise("GuideError", problem);
  } catch (nb::python_error &error) {
    if (!error.matches(PyExc_ModuleNotFoundError)) throw;
  }
  throw std::runtime_error(problem);
}

// Runs `body` without the GIL; what the program did wrong is a GuideError.
template <class Body>
auto released(Body body) {
  std::string problem;
  {
    nb::gil_scoped_release release;
    try {
      return body();
    } catch (const WasmError &error) {
      problem = error.what();
    }
  }
  raise_guide_error(problem);
}

}  // namespace

void bind_wasm(nb::module_ &m) {
  m.def(
      "wasm_bind", [](const std::string &library_path) { return wasm_bind(library_path.c_str()); }, "library_path"_a,
      nb::call_guard<nb::gil_scoped_release>(),
      "Resolve wasmtime's C interface and try it; what is missing or behaves otherwise, or an empty text.");
  m.def(
      "wasm_compile",
      [](const nb::bytes &module) {
        const std::string artefact =
            released([&] { return WasmEngine::of(WasmLimits{}.stack_bytes).compile(view(module)); });
        return nb::bytes(artefact.data(), artefact.size());
      },
      "module"_a,
      "Compile a module in this process: what WasmProgram loads. Never load what another user could have written.");
  m.def(
      "wasm_table_change", [](const nb::bytes &body) { return released([&] { return table_change(view(body)); }); },
      "body"_a, "The first instruction of a function's body that changes a table, or an empty text.");
  m.def(
      "wasm_logs",
      [](const Matcher &matcher) {
        std::string log;
        if (!wasm_log(matcher.ref->native(), log)) raise("InputError", "the matcher is not a program's");
        return text_of(log);
      },
      "matcher"_a, "What a program wrote to its log, the newest of it. At any time.");

  m.def(
      "wasm_report",
      [](const Matcher &matcher, std::int64_t num_tokens) -> nb::object {
        std::optional<WasmReport> report;
        {
          nb::gil_scoped_release release;
          report = wasm_report(matcher.ref->native(), num_tokens);
        }
        if (!report) return nb::none();
        nb::list variables;
        for (const auto &[name, value] : report->variables)
          variables.append(
              nb::make_tuple(nb::bytes(name.data(), name.size()), nb::bytes(value.bytes->data(), value.bytes->size())));
        return nb::make_tuple(nb::bytes(report->log.data(), report->log.size()), variables);
      },
      "matcher"_a, "num_tokens"_a,
      "A program's log and variables (name, value) after so many tokens of its text; None: it is no program's.");

  m.def(
      "wasm_undo_bytes", [](const Matcher &matcher) { return wasm_undo_bytes(matcher.ref->native()); }, "matcher"_a,
      "What is kept to take a program's tokens back; 0 for a matcher that is no program's.");

  nb::class_<WasmVariables>(m, "WasmVariables", "The variables that the sequences of one request share.")
      .def(nb::init<>())
      .def(
          "get",
          [](WasmVariables &self, const std::string &name) -> std::optional<std::pair<std::uint64_t, nb::bytes>> {
            const auto value = self.get(name);
            if (!value) return std::nullopt;
            return std::make_pair(value->version, nb::bytes(value->bytes->data(), value->bytes->size()));
          },
          "name"_a, "A variable's version and value, if there is one.");
  nb::class_<WasmProgram>(m, "WasmProgram", "A compiled program for one vocabulary; starts matchers.")
      .def(
          "__init__",
          [](WasmProgram *self, const nb::bytes &artefact, const nb::bytes &trie, int num_tokens,
             std::vector<std::int32_t> end_ids, std::shared_ptr<TokenTexts> texts, const nb::dict &limits) {
            const WasmLimits read = limits_of(limits);
            released([&] {
              new (self) WasmProgram(view(artefact), std::string(view(trie)), num_tokens, std::move(end_ids),
                                     std::move(texts), read);
              return 0;
            });
          },
          "artefact"_a, "trie"_a, "num_tokens"_a, "end_ids"_a, "texts"_a, "limits"_a,
          "From what wasm_compile gave. Raises GuideError for a module that imports what programs don't have.")
      .def(
          "start",
          [](std::shared_ptr<WasmProgram> self, const nb::bytes &arg, const std::vector<std::int32_t> &prompt,
             std::shared_ptr<WasmVariables> variables) {
            return own(released([&] {
              if (!variables) variables = std::make_shared<WasmVariables>();
              return wasm_matcher(self, std::string(view(arg)), prompt, variables);
            }));
          },
          "arg"_a, "prompt"_a, "variables"_a.none() = nb::none(),
          "A matcher at the start, after the program has seen the prompt. Raises GuideError where it fails.");
}

}  // namespace weft
