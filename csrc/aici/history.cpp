#include "aici/history.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "aici/base/limits.h"

namespace weft::aici {

History::History(std::shared_ptr<Variables> variables, const Limits &limits)
    : variables_(std::move(variables)), limits_(limits) {
  variables_->enter();
}

History::~History() {
  for (const auto &record : taken_) {
    variables_->keep(record->writes);
    has_kept_writes_ |= !record->writes.empty();
  }
  variables_->leave(has_kept_writes_);
}

void History::start(const Instance &instance, Position position, const Variables::Writes &writes) {
  variables_->keep(writes);
  has_kept_writes_ = !writes.empty();
  first_values_ = variables_->values();
  shadow_.follow(instance);
  position_ = std::move(position);
}

void History::open() {
  taken_.push_back(std::make_shared<Record>());
  taken_.back()->before = position_;
}

void History::follow(Instance &instance) {
  Record &record = *taken_.back();
  record.change = shadow_.follow(instance);
  record.has_run = true;
  record.writes = std::move(instance.host.writes);
  instance.host.writes.clear();
  record.num_bytes = record.change.num_bytes() + Variables::num_bytes(record.writes);
}

void History::close(Position next) noexcept {
  position_ = std::move(next);
  num_bytes_ += taken_.back()->num_bytes;
  if (bytes_before_trial_) return;
  if (!merged_tokens_.empty()) {
    Extent &max = merged_tokens_.back().max;
    const Extent now = extent();
    max = {std::max(max.num_tokens, now.num_tokens), std::max(max.num_bytes, now.num_bytes)};
  }
  try {
    while (!taken_.empty() && (taken_.size() > static_cast<std::size_t>(limits_.undo_tokens) ||
                               num_bytes_ > static_cast<std::size_t>(limits_.undo_bytes)))
      merge_oldest();
  } catch (const std::bad_alloc &) {
    // Ignore it: the token is accepted, and the next token's `close` merges the tokens beyond the limits.
  }
}

// Merges the oldest token's change into `merged_`. If it throws, `merged_` may hold a part of that change. That is
// harmless, because undoing `merged_` still leads to the start.
void History::merge_oldest() {
  const Record &oldest = *taken_.front();
  if (merged_tokens_.empty()) first_ = oldest.before;
  const std::size_t num_bytes = oldest.num_bytes;
  if (oldest.has_run) merged_.append(oldest.change);
  merged_tokens_.push_back({merged_extent_, extent()});
  ++merged_extent_.num_tokens;
  merged_extent_.num_bytes += num_bytes;
  has_merged_writes_ |= !oldest.writes.empty();
  has_kept_writes_ |= !oldest.writes.empty();
  variables_->keep(oldest.writes);
  num_bytes_ -= num_bytes;
  taken_.pop_front();
}

// Undoes one token's record. Returns whether the program took a step for that token.
bool History::undo_record(const Record &record) {
  position_ = record.before;
  if (!record.has_run) return false;
  shadow_.undo(record.change);
  variables_->undo(record.writes);
  return true;
}

History::Extent History::extent() const {
  return {merged_extent_.num_tokens + taken_.size(), merged_extent_.num_bytes + num_bytes_};
}

// Returns the limits to raise, and their values, with which the last `num_tokens` merged tokens would not have been
// merged.
std::string History::what_to_raise(std::size_t num_tokens) const {
  const auto oldest = merged_tokens_.end() - static_cast<std::ptrdiff_t>(num_tokens);
  Extent max;
  for (auto merged = oldest; merged != merged_tokens_.end(); ++merged) {
    max.num_tokens = std::max(max.num_tokens, merged->max.num_tokens);
    max.num_bytes = std::max(max.num_bytes, merged->max.num_bytes);
  }
  const std::size_t tokens = max.num_tokens - oldest->before.num_tokens;
  const std::size_t bytes = max.num_bytes - oldest->before.num_bytes;
  std::string raise;
  if (tokens > static_cast<std::size_t>(limits_.undo_tokens))
    raise = "undo_tokens to at least " + std::to_string(tokens);
  if (bytes > static_cast<std::size_t>(limits_.undo_bytes))
    raise += (raise.empty() ? "" : " and ") + ("undo_bytes to at least " + std::to_string(bytes));
  return raise;
}

bool History::undo(int count) {
  if (count < 0) throw ProgramError("can't roll back a negative number of tokens");
  const auto num_tokens = static_cast<std::size_t>(count), available = taken_.size();
  const std::string problem = "rollback of " + std::to_string(count) + " tokens, where " + std::to_string(available);
  if (num_tokens > available + merged_tokens_.size()) throw ProgramError(problem + " were taken");
  if (num_tokens > available)
    throw ProgramError(problem + " can be taken back; raise " + what_to_raise(num_tokens - available) + " to allow it");
  bool has_run = false;
  for (int i = 0; i < count; ++i) {
    has_run |= undo_record(*taken_.back());
    num_bytes_ -= taken_.back()->num_bytes;
    taken_.pop_back();
  }
  return has_run;
}

bool History::undo_all() {
  if (merged_tokens_.empty()) return undo(static_cast<int>(taken_.size()));
  // Check this first, so that a refusal changes nothing.
  if (has_merged_writes_) variables_->check_alone();
  bool has_run = undo(static_cast<int>(taken_.size()));
  if (has_merged_writes_) variables_->restore(first_values_);
  has_merged_writes_ = false;
  if (!merged_.is_empty()) {
    shadow_.undo(merged_.joined());
    has_run = true;
  }
  merged_ = GuestChanges();
  merged_tokens_.clear();
  merged_extent_ = {};
  position_ = first_;
  return has_run;
}

void History::copy_to(History &other, Instance &instance) const {
  shadow_.copy_to(instance);
  other.shadow_.follow(instance);
  other.position_ = position_;
  other.first_ = first_;
  other.first_values_ = first_values_;
  other.merged_ = merged_;
  other.has_merged_writes_ = has_merged_writes_;
  other.merged_tokens_ = merged_tokens_;
  other.merged_extent_ = merged_extent_;
  other.num_bytes_ = num_bytes_;
  // Copy first, because this may throw: after `share` the copy must hold the records.
  auto taken = taken_;
  for (const auto &record : taken) variables_->share(record->writes);
  other.taken_.swap(taken);
}

void History::Trial::check(int num_tokens) const {
  const std::size_t bytes = history_.num_bytes_ - *history_.bytes_before_trial_;
  if (bytes > static_cast<std::size_t>(history_.limits_.undo_bytes))
    throw ProgramError("the steps of " + std::to_string(num_tokens) + " tokens that were tried changed " +
                       std::to_string(bytes) + " bytes; raise undo_bytes to at least that to allow it");
}

}  // namespace weft::aici
