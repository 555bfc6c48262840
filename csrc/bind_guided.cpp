// Matchers and the guided state for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bind.h"
#include "bind_matcher.h"
#include "forced_text.h"
#include "guided_state.h"
#include "matcher_python.h"
#include "matcher_walk.h"
#include "matcher_xgrammar.h"
#include "proposals.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace weft {
namespace {

using Row = nb::ndarray<std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

int checked(const Matcher &matcher, int outcome) {
  if (outcome < 0) raise("GuideStateError", matcher.ref->error());
  return outcome;
}

GuidedState::Attach attach_of(const nb::dict &attach) {
  GuidedState::Attach changes;
  for (auto [slot, matcher] : attach)
    changes.emplace_back(nb::cast<int>(slot), matcher.is_none() ? nullptr : nb::cast<Matcher &>(matcher).ref);
  return changes;
}

GuidedState::Operation operation_of(const std::string &name) {
  if (name == "fetch") return GuidedState::kFetch;
  if (name == "extend") return GuidedState::kExtend;
  if (name == "commit") return GuidedState::kCommit;
  if (name == "extend_through") return GuidedState::kExtendThrough;
  throw nb::value_error(("no operation is called " + name).c_str());
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

void bind_matcher(nb::module_ &m) {
  nb::class_<Matcher>(m, "Matcher", "Follows one sequence of tokens. Used by one thread at a time.")
      .def(
          "accept",
          [](Matcher &self, std::int32_t token) {
            const int outcome = checked(self, self.ref->accept(token));
            self.ref->position += outcome > 0;
            self.ref->has_replaced = outcome == 2;
            return outcome > 0;
          },
          "token"_a, "Take a token; False if it is refused, with the state unchanged.")
      .def(
          "validate",
          [](Matcher &self, const std::vector<std::int32_t> &tokens) {
            return checked(self, self.ref->validate(tokens.data(), static_cast<int>(tokens.size())));
          },
          "tokens"_a, "How many of the tokens would be taken one after another; the state does not change.")
      .def(
          "fill",
          [](Matcher &self, Row row) {
            int outcome;
            {
              nb::gil_scoped_release release;
              outcome = self.ref->fill(row.data(), static_cast<int>(row.shape(0)));
            }
            return checked(self, outcome) == 1;
          },
          "row"_a.noconvert(), "Write the mask of what may follow, int32 [words]; False where nothing is blocked.")
      .def(
          "rollback",
          [](Matcher &self, int count) {
            checked(self, self.ref->rollback(count));
            self.ref->position -= count;
          },
          "count"_a = 1, "Take back the last tokens.")
      .def(
          "fork",
          [](Matcher &self) {
            void *forked = self.ref->fork();
            if (!forked) raise("GuideStateError", self.ref->error());
            Matcher fork = own({self.ref->ops(), forked});
            fork.ref->position = self.ref->position;
            return fork;
          },
          "An independent matcher in the same state.")
      .def(
          "reset",
          [](Matcher &self) {
            checked(self, self.ref->reset());
            self.ref->position = 0;
          },
          "Back to the start.")
      .def(
          "forced",
          [](Matcher &self, int capacity) {
            std::vector<std::int32_t> tokens(static_cast<std::size_t>(capacity > 0 ? capacity : 0));
            tokens.resize(static_cast<std::size_t>(checked(self, self.ref->forced(tokens.data(), capacity))));
            return tokens;
          },
          "capacity"_a, "A guess of tokens that spell what must follow whatever is sampled; the state does not change.")
      .def(
          "walk",
          [](Matcher &self, const std::vector<std::int32_t> &tokens, Row row, bool timed) {
            Walk done;
            {
              nb::gil_scoped_release release;
              done = walk(*self.ref, tokens, row.data(), static_cast<int>(row.shape(0)), timed);
            }
            checked(self, done.failed ? -1 : 0);
            return nb::make_tuple(done.taken, done.disagreements, done.fill_ns, done.accept_ns);
          },
          "tokens"_a, "row"_a.noconvert(), "timed"_a = false,
          "Fill and take tokens in turn: how many were taken, of how many the mask said otherwise, ns of each call.")
      .def(
          "temperature",
          [](Matcher &self) -> std::optional<float> {
            const float temperature = self.ref->temperature();
            return temperature < 0 ? std::nullopt : std::optional<float>(temperature);
          },
          "The temperature for the token that is sampled next; None: the request's own.")
      .def(
          "splice",
          [](Matcher &self, int capacity) {
            int backtrack = 0;
            std::vector<std::int32_t> tokens(static_cast<std::size_t>(capacity > 0 ? capacity : 0));
            tokens.resize(
                static_cast<std::size_t>(checked(self, self.ref->splice(&backtrack, tokens.data(), capacity))));
            return std::make_pair(backtrack, std::move(tokens));
          },
          "capacity"_a,
          "After a token that was replaced: how many of the last tokens go, and which come in their place.")
      .def_prop_ro(
          "has_replaced", [](Matcher &self) { return self.ref->has_replaced; },
          "Whether `accept` took its last token and puts others in its place (see `splice`).")
      .def("is_terminated", [](Matcher &self) { return self.ref->is_terminated(); })
      .def_prop_ro(
          "has_temperature", [](Matcher &self) { return self.ref->ops()->temperature != nullptr; },
          "Whether it may want another temperature than the request's.")
      .def_prop_ro(
          "slot", [](Matcher &self) { return self.ref->slot; }, "The slot it is attached to, or -1.")
      .def_prop_ro(
          "serial", [](Matcher &self) { return self.ref->serial; }, "No other matcher of the process has it.")
      .def_prop_ro(
          "position", [](Matcher &self) { return self.ref->position; },
          "How many tokens it has taken for good; while it has a slot, as of when it got it.");

  m.def(
      "python_matcher",
      [](nb::object object, nb::object factory) { return own(python_matcher(std::move(object), std::move(factory))); },
      "object"_a, "factory"_a = nb::none(),
      "A matcher over a Python object with accept, fill and is_terminated, and rollback, reset or a factory.");
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
        return own(xgrammar_matcher(reinterpret_cast<void *>(handle), vocab_size, std::move(end_tokens), texts));
      },
      "handle"_a, "vocab_size"_a, "end_tokens"_a, "texts"_a.none() = nb::none(),
      "A matcher over an xgrammar GrammarMatcher's handle; `texts` spells what is forced.");
}

void bind_state(nb::module_ &m) {
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<GuidedState>(m, "GuidedState")
      .def(
          "__init__",
          [](GuidedState *self, int num_slots, int max_drafts, int vocab_size, std::vector<std::int32_t> end_tokens,
             std::uintptr_t drafts, std::uintptr_t verified, std::uintptr_t masks, std::uintptr_t token_mask,
             std::uintptr_t temperatures, int workers, double fill_time_limit_s, int max_pending) {
            const GuidedBuffers buffers{
                reinterpret_cast<const std::int64_t *>(drafts), reinterpret_cast<const std::int64_t *>(verified),
                reinterpret_cast<std::int32_t *>(masks), reinterpret_cast<std::int32_t *>(token_mask),
                reinterpret_cast<float *>(temperatures)};
            new (self) GuidedState({num_slots, max_drafts, vocab_size}, std::move(end_tokens), buffers, workers,
                                   fill_time_limit_s, max_pending);
          },
          "num_slots"_a, "max_drafts"_a, "vocab_size"_a, "end_tokens"_a, "drafts"_a, "verified"_a, "masks"_a,
          "token_mask"_a, "temperatures"_a, "workers"_a = 0, "fill_time_limit_s"_a = 0.0, "max_pending"_a = 64)
      .def(
          "push",
          [](GuidedState &self, std::vector<int> slots, const nb::dict &attach, std::uint64_t epoch) {
            try {
              return self.push(std::move(slots), attach_of(attach), epoch);
            } catch (const std::length_error &full) {
              raise("GraphError", full.what());
            }
          },
          "slots"_a, "attach"_a, "epoch"_a = 0)
      .def("fetch", &GuidedState::fetch, released)
      .def("extend", &GuidedState::extend, "draft"_a, released)
      .def("extend_through", &GuidedState::extend_through, "count"_a, released)
      .def("commit", &GuidedState::commit, released)
      .def("release", &GuidedState::release, "slot"_a, released)
      .def(
          "task",
          [](GuidedState &self, const std::string &operation, int draft) {
            const GuidedState::Call call = self.task(operation_of(operation), draft);
            return nb::make_tuple(call.name, reinterpret_cast<std::uintptr_t>(call.run),
                                  reinterpret_cast<std::uintptr_t>(call.data));
          },
          "operation"_a, "draft"_a = 0)
      .def(
          "status",
          [](const GuidedState &self, int slot) {
            auto [status, message] = self.status(slot);
            return std::make_pair(std::string(status_name(status)), std::move(message));
          },
          "slot"_a)
      .def("committed", &GuidedState::committed, "slot"_a)
      .def("extended", &GuidedState::extended, "slot"_a)
      .def("is_terminated", &GuidedState::is_terminated, "slot"_a)
      .def("is_guided", &GuidedState::is_guided, "slot"_a)
      .def(
          "splice",
          [](const GuidedState &self,
             int slot) -> std::optional<std::tuple<std::int64_t, int, std::vector<std::int32_t>>> {
            auto splice = self.splice(slot);
            if (!splice) return std::nullopt;
            return std::tuple(splice->committed, splice->backtrack, std::move(splice->tokens));
          },
          "slot"_a,
          "Where the status is \"spliced\": of how many committed tokens how many go, and which come in their place.")
      .def_prop_ro("num_failed", &GuidedState::num_failed)
      .def_prop_ro("num_pending", &GuidedState::num_pending)
      .def_prop_ro("epoch", &GuidedState::epoch)
      .def_prop_ro("pushed_epoch", &GuidedState::pushed_epoch)
      .def(
          "record", [](GuidedState &self, std::size_t num_bytes) { self.record(num_bytes / sizeof(std::int64_t)); },
          "num_bytes"_a, released)
      .def("recorded",
           [](const GuidedState &self) {
             std::vector<std::int64_t> words;
             {
               nb::gil_scoped_release release;
               words = self.recorded();
             }
             return nb::bytes(words.data(), words.size() * sizeof words[0]);
           })
      .def(
          "counters",
          [](const GuidedState &self, const std::string &operation) {
            const OperationCounters counters = self.counters(operation_of(operation));
            return nb::make_tuple(counters.calls, counters.fills, static_cast<double>(counters.nanoseconds) * 1e-9,
                                  static_cast<double>(counters.max_nanoseconds) * 1e-9);
          },
          "operation"_a);
}

// The proposals, and the sources of them that the host speaks to.
struct BoundProposals {
  GivenSource *given = nullptr;
  NgramSource *ngram = nullptr;
  std::vector<std::string> names;
  std::unique_ptr<Proposals> native;

  BoundProposals(GuidedState &state, std::uintptr_t verified, std::uintptr_t proposed, bool has_given, bool forced,
                 std::optional<NgramSettings> settings) {
    std::vector<std::unique_ptr<DraftSource>> sources;
    if (has_given) {
      auto source = std::make_unique<GivenSource>(state);
      given = source.get();
      sources.push_back(std::move(source));
      names.push_back("given");
    }
    if (forced) {
      sources.push_back(std::make_unique<ForcedSource>(state));
      names.push_back("forced");
    }
    if (settings) {
      auto source = std::make_unique<NgramSource>(state, *settings);
      ngram = source.get();
      sources.push_back(std::move(source));
      names.push_back("ngram");
    }
    native = std::make_unique<Proposals>(state, reinterpret_cast<const std::int64_t *>(verified),
                                         reinterpret_cast<std::int64_t *>(proposed), std::move(sources));
  }
};

void bind_proposals(nb::module_ &m) {
  nb::class_<NgramSettings>(m, "NgramSettings")
      .def(nb::init<int, int, int>(), "min_length"_a, "max_length"_a, "candidates"_a);
  nb::class_<BoundProposals>(m, "Proposals")
      .def(nb::init<GuidedState &, std::uintptr_t, std::uintptr_t, bool, bool, std::optional<NgramSettings>>(),
           "state"_a, "verified"_a, "proposed"_a, "given"_a, "forced"_a, "ngram"_a.none(), nb::keep_alive<1, 2>())
      .def(
          "open",
          [](BoundProposals &self, int slot, const std::vector<std::int32_t> &tokens, int max_new_tokens,
             const std::vector<std::int32_t> &given, int num_answered) {
            const auto count = static_cast<int>(tokens.size());
            if (num_answered < 0 || num_answered > count)
              throw std::invalid_argument("the answer can't have " + std::to_string(num_answered) + " of " +
                                          std::to_string(count) + " tokens");
            nb::gil_scoped_release release;
            if (self.given) self.given->open(slot, given, tokens.data() + count - num_answered, num_answered);
            if (self.ngram) self.ngram->open(slot, tokens.data(), count, max_new_tokens);
          },
          "slot"_a, "tokens"_a, "max_new_tokens"_a, "given"_a, "num_answered"_a)
      .def(
          "set_guided",
          [](BoundProposals &self, bool guided) {
            if (self.given) self.given->set_guided(guided);
            if (self.ngram) self.ngram->set_guided(guided);
          },
          "guided"_a)
      .def(
          "run", [](BoundProposals &self, int num_drafts) { self.native->run(num_drafts); }, "num_drafts"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "task",
          [](BoundProposals &self, int num_drafts) {
            const GuidedState::Call call = self.native->task(num_drafts);
            return nb::make_tuple(call.name, reinterpret_cast<std::uintptr_t>(call.run),
                                  reinterpret_cast<std::uintptr_t>(call.data));
          },
          "num_drafts"_a)
      .def("counters", [](const BoundProposals &self) {
        const ProposalCounters counters = self.native->counters();
        nb::dict tokens;
        for (std::size_t i = 0; i < self.names.size(); ++i) tokens[self.names[i].c_str()] = counters.tokens[i];
        return nb::make_tuple(counters.calls, tokens, static_cast<double>(counters.nanoseconds) * 1e-9,
                              static_cast<double>(counters.max_nanoseconds) * 1e-9);
      });
}

}  // namespace

void bind_guided(nb::module_ &m) {
  bind_token_texts(m);
  bind_matcher(m);
  bind_state(m);
  bind_proposals(m);
}

}  // namespace weft
