// Drafts that the host proposes, for Python.
#include "bindings/proposals.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bind.h"
#include "drafting/lookahead.h"
#include "guided/state.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace weft {

void bind_proposals(nb::module_ &m) {
  nb::class_<NgramSettings>(m, "NgramSettings")
      .def(nb::init<int, int, int>(), "min_length"_a, "max_length"_a, "candidates"_a);
  nb::class_<LookaheadSettings>(m, "LookaheadSettings")
      .def(nb::init<int, int, int>(), "window"_a, "ngram"_a, "verification"_a);
  nb::class_<BoundProposals>(m, "Proposals")
      .def(nb::init<GuidedState &, const HostArray<const std::int64_t, 2> &, const HostArray<std::int64_t, 2> &, bool,
                    bool, std::optional<NgramSettings>, std::optional<LookaheadSettings>,
                    const std::optional<HostArray<const std::int64_t, 2>> &>(),
           "state"_a, nb::kw_only(), "verified"_a.noconvert(), "proposed"_a.noconvert(), "given"_a, "forced"_a,
           "ngram"_a.none(), "lookahead"_a.none(), "window"_a.none().noconvert(), nb::keep_alive<1, 2>(),
           nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 9>(),
           "Over a state and host arrays, which it keeps alive. It reads `verified` int64 [S+1, K+2], the state's,\n"
           "and `window` int64 [S+1, W+1] for lookahead (the tokens that the iteration predicted after those of\n"
           "each slot's window, then the position of its last token). It writes `proposed` int64 [K, S+1], -1 for\n"
           "no draft.")
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
              self.lookahead->open(slot, tokens.data(), count, max_new_tokens, lookahead.value_or(self.sizes), window);
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
          "task_address",
          [](BoundProposals &self, int num_drafts) {
            const GuidedState::Call call = self.native->task(num_drafts);
            return std::tuple(call.name, reinterpret_cast<std::uintptr_t>(call.run),
                              reinterpret_cast<std::uintptr_t>(call.data));
          },
          "num_drafts"_a, "Name, function and data of `run` as a host task; valid while the proposals live.")
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
