// The guided state for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/matcher.h"
#include "guided/state.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace weft {
namespace {

GuidedState::Attach attach_of(const nb::dict &attach) {
  GuidedState::Attach changes;
  for (auto [slot, matcher] : attach)
    changes.emplace_back(nb::cast<int>(slot), matcher.is_none() ? nullptr : nb::cast<Matcher &>(matcher).ref);
  return changes;
}

GuideClock::Part part_of(const std::string &name) {
  if (name == "masks") return GuideClock::kMasks;
  if (name == "tokens") return GuideClock::kTaking;
  throw nb::value_error(("no part of a guide's time is called " + name).c_str());
}

GuidedState::Operation operation_of(const std::string &name) {
  if (name == "fetch") return GuidedState::kFetch;
  if (name == "extend") return GuidedState::kExtend;
  if (name == "commit") return GuidedState::kCommit;
  if (name == "extend_through") return GuidedState::kExtendThrough;
  throw nb::value_error(("no operation is called " + name).c_str());
}

}  // namespace

void bind_guided(nb::module_ &m) {
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<GuideClock>(m, "GuideClock", "What a guide takes within one token, where it is called from Python.")
      .def(nb::init<double>(), "limit_s"_a, "With no limit (0) nothing is measured.")
      .def("restart", &GuideClock::restart, "tokens"_a = 1, "New tokens begin; those before took the work of so many.")
      .def("begin", &GuideClock::begin, "Measure on this thread from here on.")
      .def(
          "lap", [](GuideClock &self, const std::string &part) { self.lap(part_of(part)); }, "part"_a,
          "What passed since `begin` or the last lap was for `part`, \"masks\" or \"tokens\".")
      .def(
          "problem",
          [](const GuideClock &self) {
            return self.is_over() ? std::optional<std::string>(self.problem()) : std::nullopt;
          },
          "What took how long, where it was more than the limit.");
  nb::class_<GuidedState>(m, "GuidedState")
      .def(
          "__init__",
          [](GuidedState *self, int num_slots, int max_drafts, int vocab_size, std::vector<std::int32_t> end_tokens,
             std::uintptr_t drafts, std::uintptr_t verified, std::uintptr_t masks, std::uintptr_t token_mask,
             std::uintptr_t temperatures, int workers, double mask_time_limit_s, int max_pending) {
            const GuidedBuffers buffers{
                reinterpret_cast<const std::int64_t *>(drafts), reinterpret_cast<const std::int64_t *>(verified),
                reinterpret_cast<std::int32_t *>(masks), reinterpret_cast<std::int32_t *>(token_mask),
                reinterpret_cast<float *>(temperatures)};
            new (self) GuidedState({num_slots, max_drafts, vocab_size}, std::move(end_tokens), buffers, workers,
                                   mask_time_limit_s, max_pending);
          },
          "num_slots"_a, "max_drafts"_a, "vocab_size"_a, "end_tokens"_a, "drafts"_a, "verified"_a, "masks"_a,
          "token_mask"_a, "temperatures"_a, "workers"_a = 0, "mask_time_limit_s"_a = 0.0, "max_pending"_a = 64)
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
      .def("fetch", &GuidedState::fetch, "owes_commit"_a = false, released)
      .def("commit_owed", &GuidedState::commit_owed, "epoch"_a, released)
      .def("forget_owed", &GuidedState::forget_owed, "epoch"_a, released)
      .def("extend", &GuidedState::extend, "draft"_a, released)
      .def("extend_through", &GuidedState::extend_through, "count"_a, released)
      .def("commit", &GuidedState::commit, released)
      .def("release", &GuidedState::release, "slot"_a, released)
      .def("vacate", &GuidedState::vacate, "slots"_a)
      .def(
          "task",
          [](GuidedState &self, const std::string &operation, int argument) {
            const GuidedState::Call call = self.task(operation_of(operation), argument);
            return nb::make_tuple(call.name, reinterpret_cast<std::uintptr_t>(call.run),
                                  reinterpret_cast<std::uintptr_t>(call.data));
          },
          "operation"_a, "argument"_a = 0)
      .def(
          "status",
          [](const GuidedState &self, int slot) {
            auto [status, message] = self.status(slot);
            return std::make_pair(std::string(status_name(status)), text_of(message));
          },
          "slot"_a)
      .def("committed", &GuidedState::committed, "slot"_a)
      .def("extended", &GuidedState::extended, "slot"_a)
      .def("is_terminated", &GuidedState::is_terminated, "slot"_a)
      .def("is_guided", &GuidedState::is_guided, "slot"_a)
      .def(
          "edit",
          [](const GuidedState &self,
             int slot) -> std::optional<std::tuple<std::int64_t, int, std::vector<std::int32_t>>> {
            auto edit = self.edit(slot);
            if (!edit) return std::nullopt;
            return std::tuple(edit->committed, edit->drop, std::move(edit->append));
          },
          "slot"_a,
          "The edit of a slot whose status is \"edited\": after `committed` tokens, drop the last `drop`, then append "
          "these.")
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
      .def_prop_ro("seconds", &GuidedState::seconds)
      .def(
          "counters",
          [](const GuidedState &self, const std::string &operation) {
            const OperationCounters counters = self.counters(operation_of(operation));
            return nb::make_tuple(counters.calls, counters.fills, static_cast<double>(counters.nanoseconds) * 1e-9,
                                  static_cast<double>(counters.max_nanoseconds) * 1e-9);
          },
          "operation"_a);
}

}  // namespace weft
