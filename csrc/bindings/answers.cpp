// The commits of a batch's tokens to the objects of Python that hold the answers.
//
// `commit` handles every sequence of a batch in one call. It adds to the lists and the counters of an answer itself,
// and lists the sequences that Python must look at: those whose iteration `Answers::take` leaves to the caller, those
// whose pages are due to be cached, and those that report their progress.
#include "guided/answers.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/logits.h"
#include "bindings/proposals.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace weft {
namespace {

// The attributes that `commit` reads and writes.
struct Names {
  nb::str num_in_flight = interned("num_in_flight"), next_cache_at = interned("next_cache_at"),
          is_streaming = interned("is_streaming"), output = interned("output"), token_ids = interned("token_ids"),
          origins = interned("origins"), stats = interned("stats"), iterations = interned("iterations"),
          drafted_iterations = interned("drafted_iterations"), drafted_tokens = interned("drafted_tokens"),
          proposed_drafts = interned("proposed_drafts"), accepted_drafts = interned("accepted_drafts"),
          last_token_at = interned("last_token_at"), last_step = interned("last_step");

  static nb::str interned(const char *name) { return nb::steal<nb::str>(PyUnicode_InternFromString(name)); }
};

void set(nb::handle object, const nb::str &name, nb::handle value) {
  if (PyObject_SetAttr(object.ptr(), name.ptr(), value.ptr())) throw nb::python_error();
}

nb::object get(nb::handle object, const nb::str &name) {
  PyObject *value = PyObject_GetAttr(object.ptr(), name.ptr());
  if (!value) throw nb::python_error();
  return nb::steal(value);
}

std::int64_t get_number(nb::handle object, const nb::str &name) { return nb::cast<std::int64_t>(get(object, name)); }

void add(nb::handle object, const nb::str &name, std::int64_t more) {
  set(object, name, nb::int_(get_number(object, name) + more));
}

void append(nb::handle list, nb::handle value) {
  if (PyList_Append(list.ptr(), value.ptr())) throw nb::python_error();
}

class BoundAnswers {
 public:
  using Sequences = std::vector<nb::object>;

  BoundAnswers(GuidedState &state, nb::str sampled, nb::str drafter, const BoundProposals *proposals)
      : state_(state),
        native_(state),
        sampled_(std::move(sampled)),
        drafter_(std::move(drafter)),
        proposals_(proposals),
        entries_(static_cast<std::size_t>(native_.num_slots())) {
    if (proposals)
      for (const std::string &name : proposals->names) sources_.push_back(Names::interned(name.c_str()));
  }

  void open(int slot, nb::object owner, EndRules rules, std::int64_t resumed_at, bool is_guided, bool is_plain) {
    Entry entry;
    const nb::object output = get(owner, names_.output);
    entry.owner = std::move(owner);
    entry.token_ids = get(output, names_.token_ids);
    entry.origins = get(output, names_.origins);
    entry.stats = get(output, names_.stats);
    entry.is_guided = is_guided, entry.is_plain = is_plain, entry.resumed_at = resumed_at;
    if (is_plain)
      native_.open(slot, std::move(rules), is_guided, resumed_at, nb::cast<std::vector<std::int32_t>>(entry.token_ids));
    std::swap(entries_.at(static_cast<std::size_t>(slot)), entry);
  }

  void close(int slot) {
    Entry closed;  // destroyed last: that may run Python code
    std::swap(entries_.at(static_cast<std::size_t>(slot)), closed);
  }

  // Returns whether there are sequences for `take`.
  bool commit(const std::vector<int> &slots, std::uintptr_t results, bool has_drafts, std::uint64_t epoch,
              nb::handle moment, nb::handle step) {
    {
      // The matchers must accept the tokens first. They may need Python on another thread.
      nb::gil_scoped_release release;
      state_.commit_owed(epoch);
    }
    num_tokens = num_guided = num_drafting = num_drafting_tokens = num_proposed = num_accepted = 0;
    if (has_drafts) accepted_lengths = nb::list();
    const auto *verified = pointer<const std::int64_t>(results);
    const std::int64_t *num_verified = verified + (entries_.size() + 1) * native_.row_width();
    for (const int slot : slots) {
      Entry &entry = entries_.at(static_cast<std::size_t>(slot));
      if (!entry.owner.is_valid()) continue;  // its sequence has ended, or must read its text again
      const std::int64_t *row = verified + static_cast<std::size_t>(slot) * native_.row_width();
      if (entry.is_guided) num_guided += row[0] + 1;
      const int count = entry.is_plain ? native_.take(slot, row, get_number(entry.owner, names_.num_in_flight) > 1) : 0;
      if (count == 0)
        rare_.push_back(entry.owner);
      else
        add_tokens(entry, slot, row, count, has_drafts ? num_verified[slot] : 0, moment, step);
    }
    return !(rare_.empty() && due_.empty() && reporting_.empty());
  }

  // Returns the sequences of the last commit that are left to Python, those whose pages are due to be cached, and those
  // that report. Keeps none of them, since they may have ended.
  std::tuple<Sequences, Sequences, Sequences> take() {
    return {std::exchange(rare_, {}), std::exchange(due_, {}), std::exchange(reporting_, {})};
  }

  // The last commit: sums over the sequences that it handled.
  std::int64_t num_tokens = 0, num_guided = 0, num_drafting = 0, num_drafting_tokens = 0, num_proposed = 0,
               num_accepted = 0;
  nb::list accepted_lengths;

 private:
  struct Entry {
    nb::object owner, token_ids, origins, stats;
    bool is_guided = false, is_plain = false;
    std::int64_t resumed_at = 0;
  };

  void add_tokens(Entry &entry, int slot, const std::int64_t *row, int count, std::int64_t drafts, nb::handle moment,
                  nb::handle step) {
    if (count > 1) add_drafters(entry, slot, count - 1);
    append(entry.origins, sampled_);
    for (int i = 1; i <= count; ++i) append(entry.token_ids, nb::int_(row[i]));
    add(entry.stats, names_.iterations, 1);
    set(entry.stats, names_.last_token_at, moment);
    set(entry.stats, names_.last_step, step);
    num_tokens += count;
    if (drafts) {
      add(entry.stats, names_.drafted_iterations, 1);
      add(entry.stats, names_.drafted_tokens, count);
      add(entry.stats, names_.proposed_drafts, drafts);
      if (count > 1) add(entry.stats, names_.accepted_drafts, count - 1);
      ++num_drafting;
      num_drafting_tokens += count, num_proposed += drafts, num_accepted += count - 1;
      accepted_lengths.append(count - 1);
    }
    const auto length = static_cast<std::int64_t>(PyList_Size(entry.token_ids.ptr()));
    if (length >= get_number(entry.owner, names_.next_cache_at)) due_.push_back(entry.owner);
    if (get(entry.owner, names_.is_streaming).is(Py_True)) reporting_.push_back(entry.owner);
  }

  // Appends the drafters of the next `count` tokens, which are accepted drafts.
  void add_drafters(Entry &entry, int slot, int count) {
    if (!proposals_) {
      for (int i = 0; i < count; ++i) append(entry.origins, drafter_);
      return;
    }
    const std::int64_t first = PyList_Size(entry.token_ids.ptr()) - entry.resumed_at;
    for (const int place : proposals_->native->origins().of(slot, first, count))
      append(entry.origins, place < 0 ? drafter_ : sources_.at(static_cast<std::size_t>(place)));
  }

  const Names names_;
  GuidedState &state_;
  Answers native_;
  const nb::str sampled_, drafter_;
  const BoundProposals *proposals_;
  std::vector<nb::str> sources_;
  std::vector<Entry> entries_;  // [S]
  Sequences rare_, due_, reporting_;
};

}  // namespace

void bind_answers(nb::module_ &m) {
  nb::class_<BoundAnswers>(m, "Answers",
                           "Commits the tokens of a batch to the sequences of S slots. `weft.engine.output` describes\n"
                           "the sequences. The properties describe the last `commit`.")
      .def(nb::init<GuidedState &, nb::str, nb::str, const BoundProposals *>(), "state"_a, "sampled"_a, "drafter"_a,
           "proposals"_a.none(), nb::keep_alive<1, 2>(), nb::keep_alive<1, 5>(),
           "`sampled` is the origin of a sampled token, `drafter` that of an accepted draft. `proposals` knows the\n"
           "origins of other drafts.")
      .def(
          "open",
          [](BoundAnswers &self, int slot, nb::object sequence, bool is_plain, bool is_guided, std::int64_t resumed_at,
             std::int64_t max_tokens, std::vector<std::int32_t> ends, std::shared_ptr<WordAutomaton> token_words,
             std::shared_ptr<WordAutomaton> text_words, std::shared_ptr<TokenTexts> texts) {
            self.open(slot, std::move(sequence),
                      {max_tokens, std::move(ends), std::move(token_words), std::move(text_words), std::move(texts)},
                      resumed_at, is_guided, is_plain);
          },
          "slot"_a, "sequence"_a, nb::kw_only(), "is_plain"_a, "is_guided"_a = false, "resumed_at"_a = 0,
          "max_tokens"_a = 0, "ends"_a = std::vector<std::int32_t>(), "token_words"_a = nb::none(),
          "text_words"_a = nb::none(), "texts"_a = nb::none(),
          "Let later commits add to the output of `sequence`, which has the slot. If it is not `is_plain`, they leave\n"
          "all of its iterations to Python. Otherwise they leave those that may end the answer: at `max_tokens`, at a\n"
          "token of `ends`, and where a stop word may end, in token ids or in the tokens' `texts`.")
      .def("close", &BoundAnswers::close, "slot"_a, "Let later commits skip the slot.")
      .def("commit", &BoundAnswers::commit, "slots"_a, "results"_a, "has_drafts"_a, "epoch"_a, "moment"_a, "step"_a,
           "Commit the tokens that the host read at `moment`, in the engine's step `step`. Returns whether a sequence\n"
           "needs Python (`take`). `results` is the address of int64 [S+1, K+2], as `verified` of a GuidedState, and "
           "of\n"
           "int64 [S+1] after it, the numbers of drafts that were verified if the iteration `has_drafts`. First runs "
           "the\n"
           "commit that the iteration `epoch` owes.")
      .def("take", &BoundAnswers::take,
           nb::sig("def take(self) -> tuple[list[typing.Any], list[typing.Any], list[typing.Any]]"),
           "The sequences of the last commit whose iteration is left to Python, those whose pages are due to be "
           "cached,\n"
           "and those that report their progress. Call it at most once.")
      .def_ro("num_tokens", &BoundAnswers::num_tokens, "The number of tokens added.")
      .def_ro("num_guided", &BoundAnswers::num_guided,
              "The number of tokens of guided sequences, those left to Python too.")
      .def_ro("num_drafting", &BoundAnswers::num_drafting, "The number of sequences that had drafts to verify.")
      .def_ro("num_drafting_tokens", &BoundAnswers::num_drafting_tokens, "The tokens added to these sequences.")
      .def_ro("num_proposed", &BoundAnswers::num_proposed, "The number of drafts that were verified.")
      .def_ro("num_accepted", &BoundAnswers::num_accepted, "The number of drafts that were accepted.")
      .def_ro("accepted_lengths", &BoundAnswers::accepted_lengths,
              "The number of accepted drafts of each sequence that had drafts to verify.");
}

}  // namespace weft
