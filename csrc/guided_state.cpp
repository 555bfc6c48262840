#include "guided_state.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace weft {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Counts one call and its time.
template <class Counters>
class Timed {
 public:
  explicit Timed(Counters &counters) : counters_(counters), start_(now_ns()) {}
  ~Timed() {
    const auto elapsed = static_cast<std::uint64_t>(now_ns() - start_);
    counters_.calls.fetch_add(1, std::memory_order_relaxed);
    counters_.nanoseconds.fetch_add(elapsed, std::memory_order_relaxed);
    if (elapsed > counters_.max_nanoseconds.load(std::memory_order_relaxed))
      counters_.max_nanoseconds.store(elapsed, std::memory_order_relaxed);
  }

 private:
  Counters &counters_;
  const std::int64_t start_;
};

std::vector<std::int32_t> row_of(const std::vector<std::int32_t> &tokens, const GuidedShape &shape) {
  std::vector<std::int32_t> row(static_cast<std::size_t>(shape.words()));
  for (std::int32_t token : tokens) {
    if (token < 0 || token >= shape.vocab_size) throw std::invalid_argument("an end token is outside the vocabulary");
    auto &word = row[static_cast<std::size_t>(token / 32)];
    word = static_cast<std::int32_t>(static_cast<std::uint32_t>(word) | 1u << (token % 32));
  }
  return row;
}

}  // namespace

const char *status_name(SlotStatus status) {
  switch (status) {
    case SlotStatus::kOk:
      return "ok";
    case SlotStatus::kRefused:
      return "refused";
    case SlotStatus::kDeadEnd:
      return "dead_end";
    case SlotStatus::kMatcher:
      return "matcher";
    case SlotStatus::kTimeLimit:
      return "time_limit";
    case SlotStatus::kEpoch:
      return "epoch";
    case SlotStatus::kVerified:
      return "verified";
  }
  return "unknown";
}

GuidedState::GuidedState(GuidedShape shape, std::vector<std::int32_t> end_tokens, GuidedBuffers buffers, int workers,
                         double fill_time_limit_s, int max_pending)
    : shape_(shape),
      buffers_(buffers),
      fill_limit_ns_(static_cast<std::int64_t>(fill_time_limit_s * 1e9)),
      max_pending_(static_cast<std::size_t>(std::max(max_pending, 1))),
      last_word_bits_(shape.vocab_size % 32 ? (1u << (shape.vocab_size % 32)) - 1 : ~0u),
      slots_(static_cast<std::size_t>(std::max(shape.num_slots, 0)) + 1),
      pool_(std::max(workers, 0)) {
  if (shape.num_slots < 1 || shape.max_drafts < 0 || shape.vocab_size < 1)
    throw std::invalid_argument("guided state needs at least one slot and one token, and no negative draft count");
  // Without one, a row that has nothing else to allow would leave the sampler with nothing.
  if (end_tokens.empty()) throw std::invalid_argument("guided state needs at least one end token");
  end_row_ = row_of(end_tokens, shape);
  for (Slot &slot : slots_) {
    slot.taken.resize(static_cast<std::size_t>(shape.max_drafts));
    slot.rows.assign(static_cast<std::size_t>(shape.max_drafts) + 1, Row::kStale);
  }
  attached_.resize(slots_.size());
  current_.reserve(slots_.size());
  guided_.reserve(slots_.size());
  tasks_.push_back({this, kFetch, 0, "weft.guided.fetch"});
  tasks_.push_back({this, kCommit, 0, "weft.guided.commit"});
  for (int draft = 1; draft <= shape.max_drafts; ++draft)
    tasks_.push_back({this, kExtend, draft, "weft.guided.extend(" + std::to_string(draft) + ")"});
}

GuidedState::~GuidedState() {
  for (const MatcherRef &matcher : attached_)
    if (matcher) matcher->slot = -1;
}

std::uint64_t GuidedState::push(std::vector<int> slots, Attach attach, std::uint64_t epoch) {
  std::vector<bool> seen(slots_.size());
  for (int slot : slots) {
    if (slot < 0 || slot > shape_.num_slots)
      throw std::invalid_argument("slot " + std::to_string(slot) + " is out of range");
    if (slot < shape_.num_slots && seen[slot])
      throw std::invalid_argument("slot " + std::to_string(slot) + " is named twice");
    seen[slot] = true;
  }
  std::vector<bool> changed(slots_.size());
  for (const auto &[slot, matcher] : attach) {
    if (slot < 0 || slot >= shape_.num_slots)
      throw std::invalid_argument("a matcher can't be attached to slot " + std::to_string(slot));
    if (changed[slot]) throw std::invalid_argument("slot " + std::to_string(slot) + " is attached to twice");
    changed[slot] = true;
  }
  for (std::size_t i = 0; i < attach.size(); ++i) {
    const MatcherRef &matcher = attach[i].second;
    if (!matcher) continue;
    for (std::size_t k = 0; k < i; ++k)
      if (attach[k].second == matcher) throw std::invalid_argument("one matcher is attached to two slots");
    const bool leaves = matcher->slot >= 0 && attached_[matcher->slot] == matcher && changed[matcher->slot];
    if (matcher->slot >= 0 && !leaves)
      throw std::invalid_argument("the matcher has slot " + std::to_string(matcher->slot) + " already");
  }
  if (epoch != 0 && epoch <= pushed_epoch_) throw std::invalid_argument("epochs only grow");

  std::vector<MatcherRef> garbage;
  {
    std::lock_guard<std::mutex> lock(queue_mutex_);
    if (queue_.size() >= max_pending_)
      throw std::length_error(std::to_string(queue_.size()) +
                              " snapshots were pushed and none was fetched; launch the iteration after each push");
    pushed_epoch_ = epoch != 0 ? epoch : pushed_epoch_ + 1;
    garbage.swap(detached_);
    for (const auto &[slot, matcher] : attach)
      if (attached_[slot]) attached_[slot]->slot = -1;
    for (const auto &[slot, matcher] : attach) {
      attached_[slot] = matcher;
      if (matcher) matcher->slot = slot;
    }
    queue_.push_back({pushed_epoch_, std::move(slots), std::move(attach)});
  }
  return pushed_epoch_;
}

void GuidedState::fetch() {
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
    for (int slot : current_)
      if (slot < shape_.num_slots)
        fail(slot, SlotStatus::kEpoch, "no snapshot was pushed for this iteration; push one before each launch");
    return;
  }
  for (const auto &[slot, matcher] : snapshot.attach) detach(slot);
  for (auto &[slot, matcher] : snapshot.attach)
    if (matcher) attach(slot, std::move(matcher));
  current_ = std::move(snapshot.slots);
  guided_.clear();
  for (int slot : current_)
    if (slots_[slot].matcher) guided_.push_back(slot);
  const std::uint64_t expected = fetched_epoch_.load(std::memory_order_relaxed) + 1;
  fetched_epoch_.store(snapshot.epoch, std::memory_order_release);
  if (snapshot.epoch == expected) return;
  for (int slot : current_)
    if (slot < shape_.num_slots)
      fail(slot, SlotStatus::kEpoch,
           "the snapshot is of iteration " + std::to_string(snapshot.epoch) + ", this is iteration " +
               std::to_string(expected));
}

void GuidedState::detach(int number) {
  Slot &slot = slots_[number];
  if (slot.matcher) {
    // Its owner may attach it again elsewhere: it leaves with the committed text. If it can't, its next fill says so.
    if (const int extended = slot.extended.load(std::memory_order_relaxed)) slot.matcher->rollback(extended);
    std::lock_guard<std::mutex> lock(queue_mutex_);
    detached_.push_back(std::move(slot.matcher));
  }
  slot.matcher.reset();
  slot.guided.store(false, std::memory_order_release);
  slot.ended.store(false, std::memory_order_release);
  slot.committed.store(0, std::memory_order_release);
  slot.extended.store(0, std::memory_order_release);
  slot.stopped = slot.dead_end = false;
  if (slot.status.exchange(SlotStatus::kOk, std::memory_order_acq_rel) != SlotStatus::kOk)
    num_failed_.fetch_sub(1, std::memory_order_acq_rel);
  for (int position = 0; position <= shape_.max_drafts; ++position)
    buffers_.token_mask[row_index(number, position)] = 0;
  std::fill(slot.rows.begin(), slot.rows.end(), Row::kStale);
}

void GuidedState::attach(int number, MatcherRef matcher) {
  Slot &slot = slots_[number];
  slot.matcher = std::move(matcher);
  slot.guided.store(true, std::memory_order_release);
  end_rows(number, 1);
  if (slot.matcher->is_terminated()) {
    slot.ended.store(true, std::memory_order_release);
    end_rows(number, 0);
  } else if (fill(number, 0, kFetch) == Fill::kEmpty) {
    fail(number, SlotStatus::kDeadEnd, "the grammar allows no token at all");
  }
}

template <class Body>
void GuidedState::each_guided(Operation operation, Body body) {
  Timed<AtomicCounters> timed(counters_[operation]);
  pool_.for_each(static_cast<int>(guided_.size()), [&](int i) {
    const int slot = guided_[static_cast<std::size_t>(i)];
    if (slots_[slot].status.load(std::memory_order_relaxed) == SlotStatus::kOk &&
        !slots_[slot].ended.load(std::memory_order_relaxed))
      body(slot);
  });
}

void GuidedState::extend(int draft) {
  if (draft < 1 || draft > shape_.max_drafts) return;
  each_guided(kExtend, [&](int slot) { extend_slot(slot, draft); });
}

void GuidedState::commit() {
  each_guided(kCommit, [&](int slot) { commit_slot(slot); });
}

void GuidedState::extend_slot(int number, int draft) {
  Slot &slot = slots_[number];
  const std::int64_t token = buffers_.drafts[static_cast<std::size_t>(draft - 1) * slots_.size() + number];
  if (!takes_next(number, draft, token)) return;
  if (!is_allowed(number, draft - 1, token) || slot.matcher->is_terminated()) return stop(number, draft, token);
  const int outcome = slot.matcher->accept(static_cast<std::int32_t>(token));
  if (outcome < 0) return fail_matcher(number, "accepting a draft");
  if (outcome == 0) return stop(number, draft, token);
  slot.taken[draft - 1] = token;
  slot.extended.store(draft, std::memory_order_release);
  if (slot.matcher->is_terminated()) return end_rows(number, draft);
  if (fill(number, draft, kExtend) != Fill::kEmpty) return;
  // Nothing may follow this draft, so it is as good as refused: earlier rows stay as they are.
  if (!take_back(number, draft - 1)) return;
  stop(number, draft, token);
  slot.dead_end = true;
}

// Whether draft `draft` is the next that the slot's matcher is to take. A draft that was taken, or refused, and has
// been replaced since is forgotten first; rows behind one that is not to be taken are made defined.
bool GuidedState::takes_next(int number, int draft, std::int64_t token) {
  Slot &slot = slots_[number];
  const int extended = slot.extended.load(std::memory_order_relaxed);
  if (extended >= draft) return slot.taken[draft - 1] != token && take_back(number, draft - 1);
  if (extended == draft - 1 && (!slot.stopped || slot.refused != token))
    return slot.stopped = slot.dead_end = false, true;
  end_rows(number, draft);
  return false;
}

// Takes back drafts down to `count`, and forgets what stopped the slot. False: the matcher failed.
bool GuidedState::take_back(int number, int count) {
  Slot &slot = slots_[number];
  const int extended = slot.extended.load(std::memory_order_relaxed);
  slot.stopped = slot.dead_end = false;
  slot.extended.store(count, std::memory_order_release);
  for (std::size_t position = static_cast<std::size_t>(count) + 1; position < slot.rows.size(); ++position)
    if (slot.rows[position] == Row::kFilled) slot.rows[position] = Row::kStale;
  if (extended > count && slot.matcher->rollback(extended - count) != 0)
    return fail_matcher(number, "rolling back drafts"), false;
  return true;
}

void GuidedState::commit_slot(int number) {
  Slot &slot = slots_[number];
  const std::int64_t *verified = buffers_.verified + static_cast<std::size_t>(number) * (shape_.max_drafts + 2);
  const std::int64_t accepted = verified[0];
  const int extended = slot.extended.load(std::memory_order_relaxed);
  if (accepted < 0 || accepted > shape_.max_drafts)
    return fail(number, SlotStatus::kVerified, std::to_string(accepted) + " accepted drafts are not in 0..K");
  const int kept = static_cast<int>(std::min<std::int64_t>(accepted, extended));
  for (int i = 0; i < kept; ++i)
    if (verified[1 + i] != slot.taken[i])
      return fail(number, SlotStatus::kVerified,
                  "token " + std::to_string(verified[1 + i]) + " was verified where draft " + std::to_string(i + 1) +
                      " was token " + std::to_string(slot.taken[i]));
  const bool dead_end = slot.dead_end;
  if (!take_back(number, kept)) return;
  slot.extended.store(0, std::memory_order_release);
  slot.committed.fetch_add(kept, std::memory_order_acq_rel);
  const auto end = [&] {
    slot.ended.store(true, std::memory_order_release);
    end_rows(number, 0);
  };
  // Tokens behind the end are not the grammar's business.
  if (kept > 0 && slot.matcher->is_terminated()) return end();
  if (accepted > extended)
    return dead_end
               ? fail(number, SlotStatus::kDeadEnd, "no token may follow token " + std::to_string(verified[1 + kept]))
               : fail(number, SlotStatus::kRefused,
                      "draft " + std::to_string(kept + 1) + " was committed, token " +
                          std::to_string(verified[1 + kept]) + ", which the grammar did not take");
  const std::int64_t token = verified[1 + accepted];
  const int outcome = is_allowed(number, kept, token) ? slot.matcher->accept(static_cast<std::int32_t>(token)) : 0;
  if (outcome < 0) return fail_matcher(number, "accepting a token");
  if (outcome == 0)
    return fail(number, SlotStatus::kRefused, "the grammar does not take token " + std::to_string(token));
  slot.committed.fetch_add(1, std::memory_order_acq_rel);
  for (Row &row : slot.rows)
    if (row == Row::kFilled) row = Row::kStale;
  if (slot.matcher->is_terminated()) return end();
  if (fill(number, 0, kCommit) == Fill::kEmpty)
    fail(number, SlotStatus::kDeadEnd, "no token may follow token " + std::to_string(token));
}

void GuidedState::release(int number) {
  const Slot &slot = slots_.at(static_cast<std::size_t>(number));
  if (slot.matcher && slot.status.load(std::memory_order_relaxed) == SlotStatus::kOk) take_back(number, 0);
}

bool GuidedState::is_allowed(int slot, int position, std::int64_t token) {
  if (token < 0 || token >= shape_.vocab_size) return false;
  return static_cast<std::uint32_t>(row(slot, position)[token / 32]) >> (token % 32) & 1u;
}

bool GuidedState::is_empty(const std::int32_t *row) const {
  const int last = shape_.words() - 1;
  for (int word = 0; word < last; ++word)
    if (row[word] != 0) return false;
  return (static_cast<std::uint32_t>(row[last]) & last_word_bits_) == 0;
}

GuidedState::Fill GuidedState::fill(int number, int position, Operation operation) {
  Slot &slot = slots_[number];
  std::int32_t *target = row(number, position);
  const std::int64_t start = fill_limit_ns_ > 0 ? now_ns() : 0;
  slot.rows[position] = Row::kFilled;
  const int outcome = slot.matcher->fill(target, shape_.words());
  counters_[operation].fills.fetch_add(1, std::memory_order_relaxed);
  if (outcome < 0) return fail_matcher(number, "filling a mask"), Fill::kFailed;
  if (fill_limit_ns_ > 0 && now_ns() - start > fill_limit_ns_)
    return fail(number, SlotStatus::kTimeLimit,
                "one mask took " + std::to_string((now_ns() - start) / 1000000) + " ms, over the limit of " +
                    std::to_string(fill_limit_ns_ / 1000000) + " ms"),
           Fill::kFailed;
  buffers_.token_mask[row_index(number, position)] = outcome;
  return is_empty(target) ? Fill::kEmpty : Fill::kDone;
}

void GuidedState::end_rows(int number, int from) {
  Slot &slot = slots_[number];
  for (int position = from; position <= shape_.max_drafts; ++position) {
    buffers_.token_mask[row_index(number, position)] = 1;
    if (slot.rows[position] == Row::kEndOnly) continue;
    std::memcpy(row(number, position), end_row_.data(), end_row_.size() * sizeof end_row_[0]);
    slot.rows[position] = Row::kEndOnly;
  }
}

void GuidedState::stop(int number, int draft, std::int64_t refused) {
  slots_[number].stopped = true;
  slots_[number].refused = refused;
  end_rows(number, draft);
}

void GuidedState::fail(int number, SlotStatus status, std::string message) {
  Slot &slot = slots_[number];
  {
    std::lock_guard<std::mutex> lock(status_mutex_);
    if (slot.status.load(std::memory_order_relaxed) != SlotStatus::kOk) return;
    slot.message = std::move(message);
    slot.status.store(status, std::memory_order_release);
  }
  num_failed_.fetch_add(1, std::memory_order_acq_rel);
  end_rows(number, 0);
}

void GuidedState::fail_matcher(int slot, const char *during) {
  fail(slot, SlotStatus::kMatcher, std::string(during) + ": " + slots_[slot].matcher->error());
}

std::pair<SlotStatus, std::string> GuidedState::status(int number) const {
  const Slot &slot = slots_.at(static_cast<std::size_t>(number));
  std::lock_guard<std::mutex> lock(status_mutex_);
  const SlotStatus status = slot.status.load(std::memory_order_acquire);
  return {status, status == SlotStatus::kOk ? std::string() : slot.message};
}

int GuidedState::num_pending() const {
  std::lock_guard<std::mutex> lock(queue_mutex_);
  return static_cast<int>(queue_.size());
}

OperationCounters GuidedState::counters(Operation operation) const {
  const AtomicCounters &counters = counters_[operation];
  return {counters.calls.load(std::memory_order_relaxed), counters.fills.load(std::memory_order_relaxed),
          counters.nanoseconds.load(std::memory_order_relaxed),
          counters.max_nanoseconds.load(std::memory_order_relaxed)};
}

void GuidedState::run_task(void *data) {
  const Task &task = *static_cast<Task *>(data);
  switch (task.operation) {
    case kFetch:
      return task.state->fetch();
    case kCommit:
      return task.state->commit();
    default:
      return task.state->extend(task.draft);
  }
}

GuidedState::Call GuidedState::task(Operation operation, int draft) {
  if (operation == kExtend && (draft < 1 || draft > shape_.max_drafts))
    throw std::invalid_argument("draft " + std::to_string(draft) + " is not in 1..K");
  Task &task = tasks_[operation == kFetch ? 0 : operation == kCommit ? 1 : static_cast<std::size_t>(draft) + 1];
  return {&run_task, &task, task.name.c_str()};
}

}  // namespace weft
