#include "guided/state.h"

#include <algorithm>

namespace weft {
namespace {

// Says what is wrong with the argument of a task of this operation.
std::string bad_argument(GuidedState::Operation operation, int argument) {
  const std::string number = std::to_string(argument);
  if (operation == GuidedState::kFetch) return "a fetch owes its commit (1) or not (0), not " + number;
  if (operation == GuidedState::kExtend) return "draft " + number + " is not in 1..K";
  if (operation == GuidedState::kExtendThrough || operation == GuidedState::kExtendAhead)
    return number + " drafts are not in 0..K";
  return "this operation is no task";
}

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

void GuidedShape::check() const {
  if (num_slots < 1 || max_drafts < 0 || vocab_size < 1)
    throw std::invalid_argument("guided state needs at least one slot and one token, and no negative draft count");
}

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
    case SlotStatus::kEdited:
      return "edited";
  }
  return "unknown";
}

GuidedState::GuidedState(GuidedShape shape, std::vector<std::int32_t> end_tokens, GuidedBuffers buffers, int workers,
                         double mask_time_limit_s, int max_pending)
    : shape_(shape),
      buffers_(buffers),
      max_pending_(static_cast<std::size_t>(std::max(max_pending, 1))),
      last_word_bits_(shape.vocab_size % 32 ? (1u << (shape.vocab_size % 32)) - 1 : ~0u),
      slots_(static_cast<std::size_t>(std::max(shape.num_slots, 0)) + 1),
      workers_(std::max(workers, 0)),
      phase_(workers_) {
  shape.check();
  // Without an end token, a row with an empty mask would leave the sampler no token to choose.
  if (end_tokens.empty()) throw std::invalid_argument("guided state needs at least one end token");
  end_row_ = row_of(end_tokens, shape);
  for (Slot &slot : slots_) {
    slot.clock = GuideClock(mask_time_limit_s);
    slot.taken.resize(static_cast<std::size_t>(shape.max_drafts));
    slot.rows.assign(static_cast<std::size_t>(shape.max_drafts) + 1, Row::kStale);
    slot.hashes.assign(slot.rows.size(), kRowUnknown);
  }
  attached_.resize(slots_.size());
  current_.reserve(slots_.size());
  guided_.reserve(slots_.size());
  for (int owes_commit : {0, 1}) tasks_.push_back({this, kFetch, owes_commit, "weft.guided.fetch"});
  tasks_.push_back({this, kCommit, 0, "weft.guided.commit"});
  for (int draft = 1; draft <= shape.max_drafts; ++draft)
    tasks_.push_back({this, kExtend, draft, "weft.guided.extend(" + std::to_string(draft) + ")"});
  for (int count = 0; count <= shape.max_drafts; ++count) {
    tasks_.push_back({this, kExtendThrough, count, "weft.guided.extend_through(" + std::to_string(count) + ")"});
    tasks_.push_back({this, kExtendAhead, count, "weft.guided.extend_ahead(" + std::to_string(count) + ")"});
  }
  tasks_.push_back({this, kCommitAhead, 0, "weft.guided.commit_ahead"});
}

GuidedState::~GuidedState() {
  end_offer(false);
  for (Slot &slot : slots_)
    if (slot.matcher) slot.matcher->position = slot.start + slot.committed.load(std::memory_order_relaxed);
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
    // A matcher may move to another slot, if its old slot changes in the same push.
    const bool leaves = matcher->slot >= 0 && attached_[matcher->slot] == matcher && changed[matcher->slot];
    if (matcher->slot >= 0 && !leaves)
      throw std::invalid_argument("the matcher has slot " + std::to_string(matcher->slot) + " already");
  }
  if (epoch != 0 && epoch <= pushed_epoch_) throw std::invalid_argument("epochs only grow");

  // Matchers in `garbage` are destroyed after the lock is released, because that may run Python code.
  std::vector<MatcherRef> garbage;
  {
    std::lock_guard<std::mutex> lock(queue_mutex_);
    if (queue_.size() >= max_pending_)
      throw std::length_error(std::to_string(queue_.size()) +
                              " snapshots were pushed and none was fetched; launch the iteration after each push");
    pushed_epoch_ = epoch != 0 ? epoch : pushed_epoch_ + 1;
    garbage.swap(detached_);
    // Release all old slots before any new one is set: a matcher may move.
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

void GuidedState::end_ahead() {
  std::lock_guard<std::mutex> lock(owed_mutex_);
  end_extend_ahead();
}

void GuidedState::release(int number) {
  const Slot &slot = slots_.at(static_cast<std::size_t>(number));
  end_ahead();
  if (slot.matcher && slot.status.load(std::memory_order_relaxed) == SlotStatus::kOk)
    measured(number, [&] { take_back(number, 0); });
  log_release(number);
}

void GuidedState::vacate(const std::vector<int> &slots) {
  if (num_pending() != 0) throw std::logic_error("slots can't be vacated while an iteration is under way");
  for (int number : slots)
    if (number < 0 || number >= shape_.num_slots)
      throw std::invalid_argument("slot " + std::to_string(number) + " is out of range");
  end_ahead();
  std::vector<MatcherRef> garbage;
  for (int number : slots) {
    detach(number);
    guided_.erase(std::remove(guided_.begin(), guided_.end(), number), guided_.end());
    if (attached_[number]) attached_[number]->slot = -1;
    garbage.push_back(std::move(attached_[number]));
    attached_[number].reset();
  }
  std::lock_guard<std::mutex> lock(queue_mutex_);
  for (MatcherRef &matcher : detached_) garbage.push_back(std::move(matcher));
  detached_.clear();
}

std::pair<SlotStatus, std::string> GuidedState::status(int number) const {
  const Slot &slot = slots_.at(static_cast<std::size_t>(number));
  std::lock_guard<std::mutex> lock(status_mutex_);
  const SlotStatus status = slot.status.load(std::memory_order_acquire);
  return {status, status == SlotStatus::kOk ? std::string() : slot.message};
}

std::optional<Edit> GuidedState::edit(int number) const {
  const Slot &slot = slots_.at(static_cast<std::size_t>(number));
  std::lock_guard<std::mutex> lock(status_mutex_);
  if (slot.status.load(std::memory_order_acquire) != SlotStatus::kEdited) return std::nullopt;
  return slot.edit;
}

int GuidedState::num_pending() const {
  std::lock_guard<std::mutex> lock(queue_mutex_);
  return static_cast<int>(queue_.size());
}

double GuidedState::seconds() const {
  std::int64_t nanoseconds = 0;
  for (Operation operation : {kFetch, kExtend, kCommit}) nanoseconds += counters(operation).nanoseconds;
  return static_cast<double>(nanoseconds) * 1e-9;
}

OperationCounters GuidedState::counters(Operation operation) const {
  const bool extends = operation == kExtendThrough || operation == kExtendAhead;
  const AtomicCounters &counters = counters_.at(extends ? kExtend : operation == kCommitAhead ? kCommit : operation);
  return {counters.calls.load(std::memory_order_relaxed), counters.fills.load(std::memory_order_relaxed),
          counters.nanoseconds.load(std::memory_order_relaxed),
          counters.max_nanoseconds.load(std::memory_order_relaxed)};
}

void GuidedState::run_task(void *data) {
  const Task &task = *static_cast<Task *>(data);
  switch (task.operation) {
    case kFetch:
      return task.state->fetch(task.argument != 0);
    case kCommit:
      return task.state->commit();
    case kExtend:
      return task.state->extend(task.argument);
    case kExtendThrough:
      return task.state->extend_through(task.argument);
    case kCommitAhead:
      return task.state->commit_ahead();
    case kExtendAhead:
      return task.state->extend_ahead(task.argument);
    case kRelease:
      return;  // never a task: the host calls `release` itself
  }
}

GuidedState::Call GuidedState::task(Operation operation, int argument) {
  if (operation == kCommit || operation == kCommitAhead) argument = 0;  // they take none
  // The constructor makes a task for each operation and each argument that it may have.
  const auto task = std::find_if(tasks_.begin(), tasks_.end(), [&](const Task &each) {
    return each.operation == operation && each.argument == argument;
  });
  if (task == tasks_.end()) throw std::invalid_argument(bad_argument(operation, argument));
  return {&run_task, &*task, task->name.c_str()};
}

}  // namespace weft
