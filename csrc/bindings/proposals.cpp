// Proposals of drafts for Python.
#include "drafting/proposals.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "drafting/lookahead.h"
#include "guided/state.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace weft {
namespace {

// The proposals, and the sources of them that the host speaks to.
struct BoundProposals {
  GivenSource *given = nullptr;
  NgramSource *ngram = nullptr;
  LookaheadSource *lookahead = nullptr;
  LookaheadSettings most;  // of lookahead
  std::vector<std::string> names;
  std::unique_ptr<Proposals> native;

  BoundProposals(GuidedState &state, std::uintptr_t verified, std::uintptr_t proposed, bool has_given, bool forced,
                 std::optional<NgramSettings> settings, std::optional<LookaheadSettings> ahead, std::uintptr_t window) {
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
    if (ahead) {
      most = *ahead;
      auto source = std::make_unique<LookaheadSource>(state, most, reinterpret_cast<const std::int64_t *>(window));
      lookahead = source.get();
      sources.push_back(std::move(source));
      names.push_back("lookahead");
    }
    native = std::make_unique<Proposals>(state, reinterpret_cast<const std::int64_t *>(verified),
                                         reinterpret_cast<std::int64_t *>(proposed), std::move(sources));
  }
};

}  // namespace

void bind_proposals(nb::module_ &m) {
  nb::class_<NgramSettings>(m, "NgramSettings")
      .def(nb::init<int, int, int>(), "min_length"_a, "max_length"_a, "candidates"_a);
  nb::class_<LookaheadSettings>(m, "LookaheadSettings")
      .def(nb::init<int, int, int>(), "window"_a, "ngram"_a, "verification"_a);
  nb::class_<BoundProposals>(m, "Proposals")
      .def(nb::init<GuidedState &, std::uintptr_t, std::uintptr_t, bool, bool, std::optional<NgramSettings>,
                    std::optional<LookaheadSettings>, std::uintptr_t>(),
           "state"_a, "verified"_a, "proposed"_a, "given"_a, "forced"_a, "ngram"_a.none(), "lookahead"_a.none(),
           "window"_a, nb::keep_alive<1, 2>())
      .def(
          "open",
          [](BoundProposals &self, int slot, const std::vector<std::int32_t> &tokens, int max_new_tokens,
             const std::vector<std::int32_t> &given, int num_answered, std::optional<LookaheadSettings> lookahead,
             const std::vector<std::int32_t> &window) {
            const auto count = static_cast<int>(tokens.size());
            if (num_answered < 0 || num_answered > count)
              throw std::invalid_argument("the answer can't have " + std::to_string(num_answered) + " of " +
                                          std::to_string(count) + " tokens");
            nb::gil_scoped_release release;
            self.native->origins().open(slot);
            if (self.given) self.given->open(slot, given, tokens.data() + count - num_answered, num_answered);
            if (self.ngram) self.ngram->open(slot, tokens.data(), count, max_new_tokens);
            if (self.lookahead)
              self.lookahead->open(slot, tokens.data(), count, max_new_tokens, lookahead.value_or(self.most), window);
          },
          "slot"_a, "tokens"_a, "max_new_tokens"_a, "given"_a, "num_answered"_a, "lookahead"_a.none(), "window"_a)
      .def(
          "set_guided",
          [](BoundProposals &self, bool guided) {
            if (self.given) self.given->set_guided(guided);
            if (self.ngram) self.ngram->set_guided(guided);
            if (self.lookahead) self.lookahead->set_guided(guided);
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
      .def(
          "origins",
          [](BoundProposals &self, int slot, std::int64_t first, int count) {
            return self.native->origins().of(slot, first, count);
          },
          "slot"_a, "first"_a, "count"_a)
      .def("counters", [](const BoundProposals &self) {
        const ProposalCounters counters = self.native->counters();
        nb::dict tokens;
        for (std::size_t i = 0; i < self.names.size(); ++i) tokens[self.names[i].c_str()] = counters.tokens[i];
        return nb::make_tuple(counters.calls, tokens, static_cast<double>(counters.nanoseconds) * 1e-9,
                              static_cast<double>(counters.max_nanoseconds) * 1e-9);
      });
}

}  // namespace weft
