// Recording of a guided state's operations: each record has an operation's inputs and the state of the slots after it.
//
// A record has the words
//   length, operation, epoch, argument (the draft, the number of drafts, the released slot; 1: no snapshot),
//   number of slots, the slots in work, number of changes, (slot, 1 matcher or 0 none) each,
//   number of entries, the entries
// and an entry
//   slot, the matcher's serial number (0: unguided), status + 256 ended + 512 stopped, committed tokens of the matcher,
//   extended, the draft that was not taken (-1: none), numbers of rows and of inputs,
//   the drafts taken [extended], row hashes [rows], inputs [inputs]: the drafts or the verified tokens that it read.
// `python/weft/guided/flight.py` reads them.
#include <algorithm>

#include "guided/state.h"

namespace weft {
namespace {

constexpr std::size_t kHeaderWords = 7, kEntryWords = 8;

}  // namespace

void GuidedState::record(std::size_t capacity_words) {
  {
    std::lock_guard<std::mutex> lock(owed_mutex_);
    end_extend_ahead();
  }
  log_.reset();
  for (Slot &slot : slots_) std::fill(slot.hashes.begin(), slot.hashes.end(), kRowUnknown);
  if (capacity_words == 0) return;
  const auto drafts = static_cast<std::size_t>(shape_.max_drafts);
  const std::size_t entry = kEntryWords + drafts + (drafts + 1) + (drafts + 2);
  const std::size_t longest = kHeaderWords + slots_.size() * (3 + entry);
  if (capacity_words < longest)
    throw std::invalid_argument("one operation's record may take " + std::to_string(8 * longest) +
                                " bytes; give the recording at least that much");
  log_ = std::make_unique<FlightLog>(capacity_words, longest);
}

std::vector<std::int64_t> GuidedState::recorded() const { return log_ ? log_->records() : std::vector<std::int64_t>(); }

void GuidedState::log_fetch(const Attach &attach, bool is_missing) {
  if (!log_) return;
  log_->begin();
  log_->put(kFetch);
  log_->put(static_cast<std::int64_t>(epoch()));
  log_->put(is_missing ? 1 : 0);
  const std::size_t num_slots = log_->place();
  log_->put(0);
  for (int slot : current_)
    if (slot < shape_.num_slots) log_->put(slot);
  log_->set(num_slots, static_cast<std::int64_t>(log_->place() - num_slots - 1));
  log_->put(static_cast<std::int64_t>(attach.size()));
  for (const auto &change : attach) {
    log_->put(change.first);
    log_->put(slots_[static_cast<std::size_t>(change.first)].matcher ? 1 : 0);
  }
  const std::size_t count = log_->place();
  log_->put(0);
  std::int64_t entries = 0;
  for (int slot : guided_) {
    log_slot(slot, 0);
    ++entries;
  }
  for (const auto &change : attach) {
    const int slot = change.first;
    if (!slots_[static_cast<std::size_t>(slot)].matcher ||
        std::find(guided_.begin(), guided_.end(), slot) != guided_.end())
      continue;
    log_slot(slot, 0);
    ++entries;
  }
  log_->set(count, entries);
  log_->end();
}

void GuidedState::log_operation(Operation operation, int argument, bool is_owed) {
  if (!log_) return;
  log_->begin();
  log_->put(operation);
  log_->put(static_cast<std::int64_t>(epoch()));
  log_->put(argument);
  log_->put(0);
  log_->put(0);
  const std::size_t count = log_->place();
  log_->put(0);
  std::int64_t entries = 0;
  if (operation == kCommit) {
    // An owed commit may run during the next iteration, which may already be writing the verified tokens of unguided
    // slots. So only guided slots are recorded then.
    for (int slot : is_owed ? guided_ : current_) {
      if (slot >= shape_.num_slots) continue;
      log_slot(slot, 0, kCommit);
      ++entries;
    }
  } else {
    for (int slot : guided_) {
      log_slot(slot, argument, operation);
      ++entries;
    }
  }
  log_->set(count, entries);
  log_->end();
}

void GuidedState::log_release(int slot) {
  if (!log_) return;
  log_->begin();
  for (const std::int64_t word : {std::int64_t{kRelease}, static_cast<std::int64_t>(epoch()), std::int64_t{slot},
                                  std::int64_t{0}, std::int64_t{0}, std::int64_t{1}})
    log_->put(word);
  log_slot(slot, 0);
  log_->end();
}

void GuidedState::log_slot(int number, int through, Operation operation) {
  const Slot &slot = slots_[static_cast<std::size_t>(number)];
  const int extended = slot.extended.load(std::memory_order_relaxed);
  const int rows = slot.matcher ? std::max(extended, operation == kCommit ? 0 : through) + 1 : 0;
  log_->put(number);
  log_->put(slot.matcher ? slot.matcher->serial : 0);
  log_->put(static_cast<std::int64_t>(slot.status.load(std::memory_order_relaxed)) +
            (slot.ended.load(std::memory_order_relaxed) ? 256 : 0) + (slot.stop != Stop::kNone ? 512 : 0));
  log_->put(slot.matcher ? slot.start + slot.committed.load(std::memory_order_relaxed) : 0);
  log_->put(extended);
  log_->put(slot.stop != Stop::kNone ? slot.stopped_at : -1);
  log_->put(rows);
  const std::size_t num_inputs = log_->place();
  log_->put(0);
  for (int i = 0; i < extended; ++i) log_->put(slot.taken[static_cast<std::size_t>(i)]);
  for (int position = 0; position < rows; ++position) {
    const auto i = static_cast<std::size_t>(position);
    const std::uint64_t hash = slot.rows[i] == Row::kFilled    ? slot.hashes[i]
                               : slot.rows[i] == Row::kEndOnly ? kRowEndOnly
                                                               : kRowUnknown;
    log_->put(static_cast<std::int64_t>(hash));
  }
  const std::size_t before = log_->place();
  if (operation == kCommit) {
    const std::int64_t *verified =
        buffers_.verified + static_cast<std::size_t>(number) * static_cast<std::size_t>(shape_.max_drafts + 2);
    log_->put(verified[0]);
    const std::int64_t count = std::clamp<std::int64_t>(verified[0], -1, shape_.max_drafts);
    for (std::int64_t i = 0; i <= count; ++i) log_->put(verified[1 + i]);
  } else if (operation == kExtend || operation == kExtendThrough) {
    const int first = operation == kExtend ? through : 1;
    for (int draft = first; draft <= std::min(through, shape_.max_drafts); ++draft)
      log_->put(
          buffers_.drafts[static_cast<std::size_t>(draft - 1) * slots_.size() + static_cast<std::size_t>(number)]);
  }
  log_->set(num_inputs, static_cast<std::int64_t>(log_->place() - before));
}

}  // namespace weft
