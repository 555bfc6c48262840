// The operations of the guided state, slot by slot. They run on the callback thread or the polling thread, except
// that the host's thread may run an owed commit. guided/state.h has the theory of operation.
#include <algorithm>
#include <limits>
#include <utility>

#include "guided/state.h"
#include "support/awake.h"
#include "support/held_slot.h"
#include "support/timer.h"

namespace weft {

void GuidedState::fetch(bool owes_commit) {
  end_ahead();
  commit_owed(std::numeric_limits<std::uint64_t>::max());
  // Do not hold the mutex here: first masks may take long, and the host may wait for an earlier iteration's commit.
  if (!take_snapshot() || !owes_commit) return;
  std::lock_guard<std::mutex> lock(owed_mutex_);
  owed_epoch_ = fetched_epoch_.load(std::memory_order_relaxed);
}

void GuidedState::forget_owed(std::uint64_t epoch) {
  std::lock_guard<std::mutex> lock(owed_mutex_);
  if (owed_epoch_ > epoch) return;
  if (offered_ == kCommit) end_offer(false);
  owed_epoch_ = 0;
}

void GuidedState::commit_owed(std::uint64_t epoch) {
  std::lock_guard<std::mutex> lock(owed_mutex_);
  if (owed_epoch_ == 0 || owed_epoch_ > epoch) return;
  if (offered_ == kCommit) {
    end_offer(true);
    log_operation(kCommit, 0, true);
  } else {
    commit_slots(true);
  }
  owed_epoch_ = 0;
}

void GuidedState::commit_ahead() {
  std::lock_guard<std::mutex> lock(owed_mutex_);
  if (owed_epoch_ != 0) offer(kCommit, [this](int slot) { commit_live(slot); });
}

void GuidedState::extend_ahead(int count) {
  std::lock_guard<std::mutex> lock(owed_mutex_);
  // A record of an extend lists all its slots, and here only some may be done.
  if (log_) return;
  // A single matcher works on the operations' own thread. Another core would first have to fetch its memory.
  if (guided_.size() < 2) return;
  offer(kExtend, [this, count](int slot) { extend_live(slot, count); });
}

template <class Body>
void GuidedState::offer(Operation operation, Body body) {
  if (workers_ == 0 || guided_.empty() || offered_ != kRelease) return;
  for (int slot : guided_)
    if (slots_[slot].may_wait) return;
  for (int slot : guided_) slots_[slot].holds_failure = operation == kExtend;
  offered_ = operation;
  counters_[operation].calls.fetch_add(1, std::memory_order_relaxed);
  offer_.open(static_cast<int>(guided_.size()), workers_, [this, operation, body](int i) {
    const int slot = guided_[static_cast<std::size_t>(i)];
    if (!is_live(slot)) return;
    const std::int64_t begin = now_ns();
    body(slot);
    counters_[operation].nanoseconds.fetch_add(static_cast<std::uint64_t>(now_ns() - begin), std::memory_order_relaxed);
  });
}

void GuidedState::end_extend_ahead() {
  if (offered_ == kExtend) end_offer(false);
}

void GuidedState::end_offer(bool finishes) {
  offer_.close(finishes);
  if (offered_ == kExtend)
    for (int number : guided_) {
      Slot &slot = slots_[number];
      slot.holds_failure = false;
      if (const SlotStatus held = std::exchange(slot.held_status, SlotStatus::kOk); held != SlotStatus::kOk)
        fail(number, held, std::move(slot.held_message));
    }
  offered_ = kRelease;
}

// Takes the next snapshot off the queue and attaches its matchers. Returns false if the queue was empty.
bool GuidedState::take_snapshot() {
  Timed<AtomicCounters> timed(counters_[kFetch]);
  Snapshot snapshot;
  bool missing = false;
  {
    std::lock_guard<std::mutex> lock(queue_mutex_);
    missing = queue_.empty();
    if (!missing) {
      snapshot = std::move(queue_.front());
      queue_.pop_front();
    }
  }
  if (missing) {
    // Only guided slots fail. The others need no mask, so the iteration continues for them.
    for (int slot : guided_)
      fail(slot, SlotStatus::kEpoch, "no snapshot was pushed for this iteration; push one before each launch");
    log_fetch({}, true);
    return false;
  }
  // Detach everything before attaching anything: a matcher may move from one slot to another.
  for (const auto &[slot, matcher] : snapshot.attach) detach(slot);
  for (auto &[slot, matcher] : snapshot.attach) {
    if (!matcher) continue;
    slots_[slot].clock.reset();
    measured(slot, [this, number = slot, &arriving = matcher] { attach(number, std::move(arriving)); });
  }
  current_ = std::move(snapshot.slots);
  guided_.clear();
  for (int slot : current_)
    if (slots_[slot].matcher) guided_.push_back(slot);
  const std::uint64_t expected = fetched_epoch_.load(std::memory_order_relaxed) + 1;
  fetched_epoch_.store(snapshot.epoch, std::memory_order_release);
  if (snapshot.epoch != expected)
    for (int slot : guided_)
      fail(slot, SlotStatus::kEpoch,
           "the snapshot is of iteration " + std::to_string(snapshot.epoch) + ", this is iteration " +
               std::to_string(expected));
  log_fetch(snapshot.attach, false);
  return true;
}

void GuidedState::detach(int number) {
  Slot &slot = slots_[number];
  if (slot.matcher) {
    // Its owner may attach it again later, so roll it back to the committed text. If that fails, this slot has no use
    // for the error any more: its sequence has left. `attach` reports it if the matcher comes back.
    const int extended = slot.extended.load(std::memory_order_relaxed);
    if (extended > 0 && slot.matcher->rollback(extended) != 0)
      slot.matcher->misplaced = std::string("rolling back drafts: ") + slot.matcher->error();
    slot.matcher->position = slot.start + slot.committed.load(std::memory_order_relaxed);
    // The matcher's state is already after the edit.
    if (slot.status.load(std::memory_order_relaxed) == SlotStatus::kEdited)
      slot.matcher->position += static_cast<std::int64_t>(slot.edit.append.size()) - slot.edit.drop;
    std::lock_guard<std::mutex> lock(queue_mutex_);
    detached_.push_back(std::move(slot.matcher));
  }
  slot.matcher.reset();
  slot.guided.store(false, std::memory_order_release);
  slot.ended.store(false, std::memory_order_release);
  slot.committed.store(0, std::memory_order_release);
  slot.extended.store(0, std::memory_order_release);
  slot.stop = Stop::kNone;
  if (slot.status.exchange(SlotStatus::kOk, std::memory_order_acq_rel) != SlotStatus::kOk)
    num_failed_.fetch_sub(1, std::memory_order_acq_rel);
  for (int position = 0; position <= shape_.max_drafts; ++position) {
    buffers_.token_mask[row_index(number, position)] = 0;
    set_temperature(number, position, -1.0f);
  }
  std::fill(slot.rows.begin(), slot.rows.end(), Row::kStale);
}

void GuidedState::attach(int number, MatcherRef matcher) {
  Slot &slot = slots_[number];
  slot.matcher = std::move(matcher);
  slot.start = slot.matcher->position;
  slot.guided.store(true, std::memory_order_release);
  const std::int64_t waits_before = calls_that_may_wait;
  // The device applies all rows of a guided slot, so rows without drafts must be defined.
  end_rows(number, 1);
  if (!slot.matcher->misplaced.empty()) {
    fail(number, SlotStatus::kMatcher, slot.matcher->misplaced);
  } else if (slot.matcher->is_terminated()) {
    end_slot(number);
  } else if (fill(number, 0, kFetch) == Fill::kEmpty) {
    fail(number, SlotStatus::kDeadEnd, "the grammar allows no token at all");
  }
  slot.may_wait = slot.matcher->may_wait || calls_that_may_wait != waits_before;
}

template <class Body>
void GuidedState::each_guided(Operation operation, Body body) {
  Timed<AtomicCounters> timed(counters_[operation]);
  phase_.for_each(static_cast<int>(guided_.size()), [&](int i) {
    const int slot = guided_[static_cast<std::size_t>(i)];
    if (is_live(slot)) body(slot);
  });
}

void GuidedState::extend(int draft) {
  if (draft < 1 || draft > shape_.max_drafts) return;
  each_guided(kExtend, [&](int slot) { measured(slot, [&] { extend_slot(slot, draft); }); });
  log_operation(kExtend, draft);
}

void GuidedState::extend_through(int count) {
  each_guided(kExtend, [&](int slot) { extend_live(slot, count); });
  log_operation(kExtendThrough, std::min(count, shape_.max_drafts));
}

void GuidedState::extend_live(int slot, int count) {
  for (int draft = 1; draft <= std::min(count, shape_.max_drafts); ++draft) {
    // Measure each draft separately, so that a slot over its limit stops at once and not after all drafts.
    if (slots_[slot].status.load(std::memory_order_relaxed) != SlotStatus::kOk ||
        slots_[slot].held_status != SlotStatus::kOk)
      return;
    measured(slot, [&] { extend_slot(slot, draft); });
  }
}

void GuidedState::commit() { commit_slots(false); }

void GuidedState::commit_slots(bool is_owed) {
  each_guided(kCommit, [&](int slot) { commit_live(slot); });
  log_operation(kCommit, 0, is_owed);
}

void GuidedState::commit_live(int slot) {
  // The clock has measured 1 + extended tokens since the last commit: the token of that commit, and the extended
  // drafts.
  slots_[slot].clock.restart(1 + slots_[slot].extended.load(std::memory_order_relaxed));
  measured(slot, [&] { commit_slot(slot); });
}

void GuidedState::extend_slot(int number, int draft) {
  Slot &slot = slots_[number];
  const std::int64_t token = buffers_.drafts[static_cast<std::size_t>(draft - 1) * slots_.size() + number];
  if (!is_next(number, draft, token)) return;
  // Check the mask first: it refuses -1 ("no draft"). The second test is needed because a terminated matcher's mask
  // allows end tokens, and a second end token must be refused.
  if (!is_allowed(number, draft - 1, token) || slot.matcher->is_terminated())
    return stop(number, draft, Stop::kRefused, token);
  const int outcome = slot.matcher->accept(static_cast<std::int32_t>(token));
  slot.clock.lap(GuideClock::kTaking);
  if (outcome < 0) return fail_matcher(number, "accepting a draft");
  if (outcome == 0) return stop(number, draft, Stop::kRefused, token);
  if (outcome == 2) {
    // An edit can't be rolled back once the host has applied it, so it waits until the token is committed.
    if (slot.matcher->rollback(1) != 0) return fail_matcher(number, "rolling back a draft");
    return stop(number, draft, Stop::kEdits, token);
  }
  slot.taken[draft - 1] = token;
  slot.extended.store(draft, std::memory_order_release);
  if (slot.matcher->is_terminated()) return end_rows(number, draft);
  if (fill(number, draft, kExtend) != Fill::kEmpty) return;
  // An empty row would leave the sampler without a token. So the draft counts as refused: the rows before it stay
  // valid, and verification may reject the draft anyway.
  if (take_back(number, draft - 1)) stop(number, draft, Stop::kDeadEnd, token);
}

// Returns whether the matcher should take draft `draft` now. If the draft at this position was replaced since it was
// taken, the old one is rolled back first. If the draft cannot be reached, the rows from it on allow end tokens only:
// the device applies them in any case, so they must be defined.
bool GuidedState::is_next(int number, int draft, std::int64_t token) {
  Slot &slot = slots_[number];
  const int extended = slot.extended.load(std::memory_order_relaxed);
  if (extended >= draft) return slot.taken[draft - 1] != token && take_back(number, draft - 1);
  const bool is_known_refusal = slot.stop != Stop::kNone && slot.stopped_at == token;
  if (extended == draft - 1 && !is_known_refusal) {
    slot.stop = Stop::kNone;
    return true;
  }
  end_rows(number, draft);
  return false;
}

// Rolls the matcher back to the first `count` drafts and clears the stop. Returns false if the matcher failed.
bool GuidedState::take_back(int number, int count) {
  Slot &slot = slots_[number];
  const int extended = slot.extended.load(std::memory_order_relaxed);
  slot.stop = Stop::kNone;
  slot.extended.store(count, std::memory_order_release);
  for (std::size_t position = static_cast<std::size_t>(count) + 1; position < slot.rows.size(); ++position)
    if (slot.rows[position] == Row::kFilled) slot.rows[position] = Row::kStale;
  if (extended == count) return true;
  const int outcome = slot.matcher->rollback(extended - count);
  slot.clock.lap(GuideClock::kTakingBack);
  if (outcome == 0) return true;
  fail_matcher(number, "rolling back drafts");
  return false;
}

void GuidedState::commit_slot(int number) {
  Slot &slot = slots_[number];
  const std::int64_t *verified = buffers_.verified + static_cast<std::size_t>(number) * (shape_.max_drafts + 2);
  const std::int64_t accepted = verified[0];
  if (accepted == kHeldSlot) return;  // the host chooses this slot's tokens and has not done so yet
  const int extended = slot.extended.load(std::memory_order_relaxed);
  if (accepted < 0 || accepted > shape_.max_drafts)
    return fail(number, SlotStatus::kVerified, std::to_string(accepted) + " accepted drafts are not in 0..K");

  // Keep the drafts that were both taken and accepted. If a taken draft differs from the verified token, the matcher
  // would follow another text than the request's, and no later operation could detect it.
  const int kept = static_cast<int>(std::min<std::int64_t>(accepted, extended));
  for (int i = 0; i < kept; ++i)
    if (verified[1 + i] != slot.taken[i])
      return fail(number, SlotStatus::kVerified,
                  "token " + std::to_string(verified[1 + i]) + " was verified where draft " + std::to_string(i + 1) +
                      " was token " + std::to_string(slot.taken[i]));
  const Stop reason = slot.stop;  // take_back clears it
  if (!take_back(number, kept)) return;
  slot.extended.store(0, std::memory_order_release);
  slot.committed.fetch_add(kept, std::memory_order_acq_rel);

  // The engine drops tokens after an end token, so the grammar need not check them.
  if (kept > 0 && slot.matcher->is_terminated()) return end_slot(number);

  // The next token is either an accepted draft that the matcher did not take, or the token sampled after all accepted
  // drafts.
  const std::int64_t token = verified[1 + kept];
  if (accepted > extended) return commit_untaken(number, reason, kept + 1, token);
  const int outcome = is_allowed(number, kept, token) ? slot.matcher->accept(static_cast<std::int32_t>(token)) : 0;
  slot.clock.lap(GuideClock::kTaking);
  if (outcome < 0) return fail_matcher(number, "accepting a token");
  if (outcome == 0)
    return fail(number, SlotStatus::kRefused, "the grammar does not take token " + std::to_string(token));
  if (outcome == 2) return take_edit(number);
  slot.committed.fetch_add(1, std::memory_order_acq_rel);

  // The filled rows are masks for the text before this token.
  for (Row &row : slot.rows)
    if (row == Row::kFilled) row = Row::kStale;
  if (slot.matcher->is_terminated()) return end_slot(number);
  if (fill(number, 0, kCommit) == Fill::kEmpty)
    fail(number, SlotStatus::kDeadEnd, "no token may follow token " + std::to_string(token));
}

// Handles an accepted draft that the matcher had not taken: the text now holds `token`, and `reason` says why the slot
// stopped there.
void GuidedState::commit_untaken(int number, Stop reason, int draft, std::int64_t token) {
  Slot &slot = slots_[number];
  if (reason == Stop::kEdits) {
    const int outcome = slot.matcher->accept(static_cast<std::int32_t>(token));
    return outcome == 2 ? take_edit(number) : fail_matcher(number, "accepting a token again");
  }
  if (reason == Stop::kDeadEnd) {
    slot.committed.fetch_add(1, std::memory_order_acq_rel);  // the grammar takes this token, but allows none after it
    return fail(number, SlotStatus::kDeadEnd, "no token may follow token " + std::to_string(token));
  }
  fail(number, SlotStatus::kRefused,
       "draft " + std::to_string(draft) + " was committed, token " + std::to_string(token) +
           ", which the grammar did not take");
}

// Marks the slot ended: its text has an end token, so all its rows allow end tokens only.
void GuidedState::end_slot(int number) {
  slots_[number].ended.store(true, std::memory_order_release);
  end_rows(number, 0);
}

void GuidedState::stop(int number, int draft, Stop reason, std::int64_t token) {
  slots_[number].stop = reason;
  slots_[number].stopped_at = token;
  end_rows(number, draft);
}

void GuidedState::fail(int number, SlotStatus status, std::string message) {
  Slot &slot = slots_[number];
  if (slot.holds_failure) {
    if (slot.held_status != SlotStatus::kOk) return;
    slot.held_status = status;
    slot.held_message = std::move(message);
    return;
  }
  {
    std::lock_guard<std::mutex> lock(status_mutex_);
    if (slot.status.load(std::memory_order_relaxed) != SlotStatus::kOk) return;  // keep the first failure
    slot.message = std::move(message);
    slot.status.store(status, std::memory_order_release);
  }
  num_failed_.fetch_add(1, std::memory_order_acq_rel);
  end_rows(number, 0);
}

// Stores the edit that the matcher requests after the last token. The slot then has status kEdited and does nothing
// until the host has applied the edit and attached the matcher again.
void GuidedState::take_edit(int number) {
  constexpr int kMaxTokens = 1 << 16;
  Slot &slot = slots_[number];
  Edit edit;
  edit.committed = slot.committed.fetch_add(1, std::memory_order_acq_rel) + 1;
  edit.append.resize(kMaxTokens);
  const int count = slot.matcher->edit(&edit.drop, edit.append.data(), kMaxTokens);
  if (count < 0) return fail_matcher(number, "editing the text");
  const auto is_token = [this](std::int32_t token) { return token >= 0 && token < shape_.vocab_size; };
  if (count > kMaxTokens || edit.drop < 0 || edit.drop > 1 ||
      !std::all_of(edit.append.begin(), edit.append.begin() + count, is_token))
    return fail(number, SlotStatus::kMatcher,
                "the matcher takes back " + std::to_string(edit.drop) + " tokens and puts " + std::to_string(count) +
                    "; it may take back 1, and put tokens of the vocabulary");
  edit.append.resize(static_cast<std::size_t>(count));
  if (slot.matcher->is_terminated()) slot.ended.store(true, std::memory_order_release);
  slot.clock.lap(GuideClock::kTaking);
  if (slot.clock.is_over()) return;  // `measured` then fails the slot with kTimeLimit
  {
    std::lock_guard<std::mutex> lock(status_mutex_);
    slot.edit = std::move(edit);
  }
  fail(number, SlotStatus::kEdited, "the text is being edited");
}

void GuidedState::fail_matcher(int slot, const char *during) {
  fail(slot, SlotStatus::kMatcher, std::string(during) + ": " + slots_[slot].matcher->error());
}

// Whether the slot is live and its matcher has taken exactly the committed text.
bool GuidedState::is_at_committed(int number) const {
  const Slot &slot = slots_[number];
  return slot.matcher && slot.status.load(std::memory_order_relaxed) == SlotStatus::kOk &&
         !slot.ended.load(std::memory_order_relaxed) && slot.extended.load(std::memory_order_relaxed) == 0;
}

int GuidedState::validate(int number, const std::int32_t *tokens, int count) {
  if (!is_at_committed(number)) return 0;
  int taken = 0;
  measured(number, [&] {
    taken = slots_[number].matcher->validate(tokens, count);
    slots_[number].clock.lap(GuideClock::kTrying);
    if (taken < 0) fail_matcher(number, "validating drafts");
  });
  return std::max(taken, 0);
}

int GuidedState::forced(int number, std::int32_t *tokens, int capacity) {
  if (capacity < 1 || !is_at_committed(number)) return 0;
  int count = 0;
  measured(number, [&] {
    count = slots_[number].matcher->forced(tokens, capacity);
    slots_[number].clock.lap(GuideClock::kForcing);
    if (count < 0) fail_matcher(number, "looking for forced tokens");
  });
  if (count != 0) return std::max(count, 0);
  // Not every matcher finds forced text. A mask that allows a single token forces that token as well.
  tokens[0] = only_token(row(number, 0));
  return tokens[0] < 0 ? 0 : 1;
}

}  // namespace weft
