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

#include "bindings/arrays.h"
#include "bindings/bind.h"
#include "bindings/matcher.h"
#include "guided/state.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace weft {
namespace {

GuidedState::Attach attach_of(const nb::mapping &attach) {
  GuidedState::Attach changes;
  for (nb::handle item : attach.items()) {
    const nb::object slot = item[0], matcher = item[1];
    changes.emplace_back(nb::cast<int>(slot), matcher.is_none() ? nullptr : nb::cast<Matcher &>(matcher).ref);
  }
  return changes;
}

GuideClock::Part part_of(const std::string &name) {
  if (name == "masks") return GuideClock::kMasks;
  if (name == "tokens") return GuideClock::kTaking;
  throw nb::value_error(("unknown part of a guide's time: " + name).c_str());
}

GuidedState::Operation operation_of(const std::string &name) {
  if (name == "fetch") return GuidedState::kFetch;
  if (name == "extend") return GuidedState::kExtend;
  if (name == "commit") return GuidedState::kCommit;
  if (name == "extend_through") return GuidedState::kExtendThrough;
  if (name == "commit_ahead") return GuidedState::kCommitAhead;
  if (name == "extend_ahead") return GuidedState::kExtendAhead;
  throw nb::value_error(("unknown operation: " + name).c_str());
}

}  // namespace

void bind_guided(nb::module_ &m) {
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<GuideClock>(m, "GuideClock",
                         "Measures the time of a guide within one token, for guides that are called from Python.")
      .def(nb::init<double>(), "limit_s"_a, "A limit of 0 means no limit: nothing is measured.")
      .def("restart", &GuideClock::restart, "tokens"_a = 1,
           "Start the time of the next token from 0; the time until now was for `tokens` tokens.")
      .def("begin", &GuideClock::begin, "Begin to measure the time of this thread.")
      .def(
          "lap", [](GuideClock &self, const std::string &part) { self.lap(part_of(part)); }, "part"_a,
          "Add the time since `begin` or the last lap to `part`, \"masks\" or \"tokens\".")
      .def(
          "problem",
          [](const GuideClock &self) {
            return self.is_over() ? std::optional<std::string>(self.problem()) : std::nullopt;
          },
          "A message with the time of each part if the total is over the limit, else None.");
  nb::class_<OperationCounters>(m, "OperationCounters", "The cost of one operation since the state was made.")
      .def_ro("calls", &OperationCounters::calls)
      .def_ro("fills", &OperationCounters::fills, "The number of mask rows that were filled.")
      .def_prop_ro(
          "seconds", [](const OperationCounters &self) { return static_cast<double>(self.nanoseconds) * 1e-9; },
          "The total time of all calls.")
      .def_prop_ro(
          "max_seconds", [](const OperationCounters &self) { return static_cast<double>(self.max_nanoseconds) * 1e-9; },
          "The time of the longest call.");
  nb::class_<GuidedState>(
      m, "GuidedState",
      "Matchers and mask rows of S slots, with up to K drafts each, over V tokens; W = ceil(V / 32).\n"
      "\n"
      "csrc/guided/state.h has its theory of operation.")
      .def(
          "__init__",
          [](GuidedState *self, int num_slots, int max_drafts, int vocab_size, std::vector<std::int32_t> end_tokens,
             const HostArray<const std::int64_t, 2> &drafts, const HostArray<const std::int64_t, 2> &verified,
             const HostArray<std::int32_t, 2> &masks, const HostArray<std::int32_t, 1> &token_mask,
             const HostArray<float, 1> &temperatures, int workers, double mask_time_limit_s, int max_pending) {
            const GuidedShape shape{num_slots, max_drafts, vocab_size};
            shape.check();  // before the arrays' sizes are computed from it
            const auto slots = static_cast<std::size_t>(num_slots) + 1,
                       positions = static_cast<std::size_t>(max_drafts) + 1;
            const std::size_t rows = slots * positions;
            const GuidedBuffers buffers{
                host_data(drafts, "drafts", {positions - 1, slots}),
                host_data(verified, "verified", {slots, positions + 1}),
                host_data(masks, "masks", {rows, static_cast<std::size_t>(shape.words())}),
                host_data(token_mask, "token_mask", {rows}),
                host_data(temperatures, "temperatures", {rows}),
            };
            new (self) GuidedState(shape, std::move(end_tokens), buffers, workers, mask_time_limit_s, max_pending);
          },
          nb::kw_only(), "num_slots"_a, "max_drafts"_a, "vocab_size"_a, "end_tokens"_a, "drafts"_a.noconvert(),
          "verified"_a.noconvert(), "masks"_a.noconvert(), "token_mask"_a.noconvert(), "temperatures"_a.noconvert(),
          "workers"_a = 0, "mask_time_limit_s"_a = 0.0, "max_pending"_a = 64,
          // Arguments 6 to 10 are the arrays.
          nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(), nb::keep_alive<1, 8>(), nb::keep_alive<1, 9>(),
          nb::keep_alive<1, 10>(),
          "The state works on these host arrays and keeps them alive. It reads `drafts` int64 [K, S+1] (-1: no\n"
          "draft) and `verified` int64 [S+1, K+2] (the number of accepted drafts, then the tokens of positions\n"
          "0..K). It writes `masks` int32 [(S+1)*(K+1), W], `token_mask` int32 [(S+1)*(K+1)] (0: the row's mask is\n"
          "not applied) and `temperatures` float32 [(S+1)*(K+1)] (the matcher's; negative: the request's own\n"
          "applies). Row slot*(K+1) + j is for the token after the committed text and j drafts.\n"
          "\n"
          "A row whose mask would allow no token allows `end_tokens` instead. `workers` native threads help when\n"
          "an operation's matcher calls are long. A matcher that takes longer than `mask_time_limit_s` (0: no\n"
          "limit) from one commit to the next fails its slot. Its processor time counts in full, and its waiting\n"
          "time beyond 2 s. At most `max_pending` snapshots wait for a fetch.")
      .def(
          "push",
          [](GuidedState &self, std::vector<int> slots, const std::optional<nb::mapping> &attach, std::uint64_t epoch) {
            try {
              return self.push(std::move(slots), attach ? attach_of(*attach) : GuidedState::Attach{}, epoch);
            } catch (const std::length_error &full) {
              raise("GraphError", full.what());
            }
          },
          "slots"_a, "attach"_a = nb::none(), nb::kw_only(), "epoch"_a = 0,
          nb::sig("def push(self, slots: collections.abc.Sequence[int], "
                  "attach: collections.abc.Mapping[int, weft._core.Matcher | None] | None = None, "
                  "*, epoch: int = 0) -> int"),
          "Pass the snapshot of the next iteration to its `fetch`, before its launch. Returns its epoch.\n"
          "\n"
          "The iteration works on `slots`; the padding slot S may appear any number of times. `attach` gives slots\n"
          "a matcher or, with None, takes it away; both reset the slot. A matcher has at most one slot, and belongs\n"
          "to it until an iteration without it is done. It leaves with the committed text, so it can be attached\n"
          "again. `epoch` numbers the iteration (default: one more than the last). Raises `ValueError` for slots,\n"
          "matchers and epochs that don't fit, and `GraphError` when `max_pending` iterations were pushed and not\n"
          "launched.")
      .def("fetch", &GuidedState::fetch, "owes_commit"_a = false, released,
           "Take the oldest snapshot, and fill row 0 of the slots that it attaches. Without a snapshot, or with\n"
           "that of another iteration, the slots fail. First runs the commit that the last iteration owes. With\n"
           "`owes_commit` this iteration has no `commit`.")
      .def("commit_owed", &GuidedState::commit_owed, "epoch"_a, released,
           "After iteration `epoch` is done: run the commit that it owes, unless a `fetch` has run it. On any thread.")
      .def("forget_owed", &GuidedState::forget_owed, "epoch"_a, released,
           "After iteration `epoch` failed, with nothing of it in flight: cancel the commit that it owes.")
      .def("extend", &GuidedState::extend, "draft"_a, released,
           "Take draft `draft` (1..K) of each guided slot that took the drafts before it, and fill row `draft`.")
      .def("extend_through", &GuidedState::extend_through, "count"_a, released,
           "`extend(1)` to `extend(count)` in one call. A draft that was taken and has not changed costs nothing.")
      .def("commit", &GuidedState::commit, released,
           "Roll back the drafts that were not accepted, take the token after the accepted ones, and fill row 0.")
      .def("commit_ahead", &GuidedState::commit_ahead, released,
           "Offer the commit that this iteration owes to idle kernel threads. `commit_owed` or `fetch` does the rest.")
      .def("extend_ahead", &GuidedState::extend_ahead, "count"_a, released,
           "Offer `extend_through(count)` to idle kernel threads, until the next `fetch`. A slot that fails in it\n"
           "gets its status at that `fetch`.")
      .def("release", &GuidedState::release, "slot"_a, released,
           "Roll the slot back to its committed text; its matcher stays. With nothing in flight.")
      .def("end_ahead", &GuidedState::end_ahead, released, "End an `extend_ahead` if no `fetch` will.")
      .def("vacate", &GuidedState::vacate, "slots"_a, released,
           "Drop the slots' matchers at once, before the push that takes them away. With nothing in flight.")
      .def(
          "task_address",
          [](GuidedState &self, const std::string &operation, int argument) {
            const GuidedState::Call call = self.task(operation_of(operation), argument);
            return std::tuple(call.name, reinterpret_cast<std::uintptr_t>(call.run),
                              reinterpret_cast<std::uintptr_t>(call.data));
          },
          "operation"_a, "argument"_a = 0,
          "Name, function and data of an operation as a host task; valid while the state lives.")
      .def(
          "status",
          [](const GuidedState &self, int slot) {
            auto [status, message] = self.status(slot);
            if (status == SlotStatus::kOk) return std::pair(nb::str(""), nb::str(""));
            // The message may quote untrusted text, so escape it.
            const nb::object escaped = nb::module_::import_("weft.errors").attr("escaped");
            return std::pair(nb::str(status_name(status)), nb::str(escaped(text_of(message))));
          },
          "slot"_a,
          "Code and one-line message of the failure that ended the slot's grammar; (\"\", \"\") without a failure.\n"
          "\n"
          "Codes: \"refused\" (a committed token is not in the grammar), \"dead_end\" (no token may follow),\n"
          "\"matcher\" (it failed), \"time_limit\" (it took too long), \"epoch\" (snapshots and iterations are out of\n"
          "step), \"verified\" (the verified tokens contradict the drafts), \"edited\" (the matcher asks for an\n"
          "edit of the text: `edit`).")
      .def("committed", &GuidedState::committed, "slot"_a,
           "The number of committed tokens since the matcher was attached; tokens after an end token do not count.")
      .def("extended", &GuidedState::extended, "slot"_a,
           "The number of drafts that the slot's matcher has taken after the committed text.")
      .def("is_terminated", &GuidedState::is_terminated, "slot"_a, "Whether an end token was committed.")
      .def("is_guided", &GuidedState::is_guided, "slot"_a, "Whether the slot has a matcher.")
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
      .def_prop_ro(
          "num_slots", [](const GuidedState &self) { return self.shape().num_slots; }, "S")
      .def_prop_ro(
          "max_drafts", [](const GuidedState &self) { return self.shape().max_drafts; }, "K")
      .def_prop_ro(
          "vocab_size", [](const GuidedState &self) { return self.shape().vocab_size; }, "V")
      .def_prop_ro(
          "num_words", [](const GuidedState &self) { return self.shape().words(); }, "W")
      .def_prop_ro("num_failed", &GuidedState::num_failed,
                   "The number of slots with a status other than \"\"; cheap to read in every iteration.")
      .def_prop_ro("num_pending", &GuidedState::num_pending,
                   "The number of snapshots that were pushed and not fetched.")
      .def_prop_ro("epoch", &GuidedState::epoch, "The epoch of the last snapshot that was fetched.")
      .def_prop_ro("pushed_epoch", &GuidedState::pushed_epoch, "The epoch of the last snapshot that was pushed.")
      .def(
          "record", [](GuidedState &self, std::size_t max_bytes) { self.record(max_bytes / sizeof(std::int64_t)); },
          "max_bytes"_a, released,
          "Keep records of the last operations in `max_bytes` of memory (0: none) for `weft.guided.flight`, and\n"
          "drop earlier records. With nothing in flight. Raises `ValueError` for less than the longest record of an\n"
          "operation.\n"
          "\n"
          "While it records, the thread that fills a mask row also hashes it (about 16 bytes per cycle).")
      .def(
          "recorded",
          [](const GuidedState &self) {
            std::vector<std::int64_t> words;
            {
              nb::gil_scoped_release release;
              words = self.recorded();
            }
            return nb::bytes(words.data(), words.size() * sizeof words[0]);
          },
          "The records, oldest first, for `weft.guided.flight.operations`. Callable at any time, on any thread.")
      .def_prop_ro("seconds", &GuidedState::seconds, "The total time of all operations so far. Readable on any thread.")
      .def(
          "counters",
          [](const GuidedState &self, const std::string &operation) { return self.counters(operation_of(operation)); },
          "operation"_a,
          "The cost so far of \"fetch\", \"extend\" (an \"extend_through\" counts as one call of it) or \"commit\".");
}

}  // namespace weft
