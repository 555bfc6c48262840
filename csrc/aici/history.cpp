#include "aici/history.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "aici/base/error.h"

namespace weft {

WasmHistory::WasmHistory(std::shared_ptr<WasmVariables> variables, const WasmLimits &limits)
    : variables_(std::move(variables)), limits_(limits) {
  variables_->enter();
}

WasmHistory::~WasmHistory() {
  for (const auto &taken : taken_) {
    variables_->keep(taken->writes);
    has_kept_writes_ |= !taken->writes.empty();
  }
  variables_->leave(has_kept_writes_);
}

void WasmHistory::start(const WasmInstance &instance, WasmPosition position, const WasmVariables::Writes &writes) {
  variables_->keep(writes);
  has_kept_writes_ = !writes.empty();
  first_values_ = variables_->values();
  shadow_.follow(instance);
  position_ = std::move(position);
}

void WasmHistory::open() {
  taken_.push_back(std::make_shared<Taken>());
  taken_.back()->before = position_;
}

void WasmHistory::follow(WasmInstance &instance) {
  Taken &taken = *taken_.back();
  taken.change = shadow_.follow(instance);
  taken.has_run = true;
  taken.writes = std::move(instance.host.writes);
  instance.host.writes.clear();
  taken.num_bytes = taken.change.num_bytes() + WasmVariables::num_bytes(taken.writes);
}

void WasmHistory::close(WasmPosition next) noexcept {
  position_ = std::move(next);
  num_bytes_ += taken_.back()->num_bytes;
  if (bytes_before_trial_) return;
  if (!merged_tokens_.empty()) {
    Extent &most = merged_tokens_.back().most;
    const Extent now = extent();
    most = {std::max(most.num_tokens, now.num_tokens), std::max(most.num_bytes, now.num_bytes)};
  }
  try {
    while (!taken_.empty() && (taken_.size() > static_cast<std::size_t>(limits_.undo_tokens) ||
                               num_bytes_ > static_cast<std::size_t>(limits_.undo_bytes)))
      merge_oldest();
  } catch (const std::bad_alloc &) {
    // The token is taken all the same; the next one merges it.
  }
}

// On failure `merged_` has a part of the change, which leads back to where it was before all the same.
void WasmHistory::merge_oldest() {
  const Taken &oldest = *taken_.front();
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

bool WasmHistory::undo(const Taken &taken) {
  position_ = taken.before;
  if (!taken.has_run) return false;
  shadow_.undo(taken.change);
  variables_->undo(taken.writes);
  return true;
}

WasmHistory::Extent WasmHistory::extent() const {
  return {merged_extent_.num_tokens + taken_.size(), merged_extent_.num_bytes + num_bytes_};
}

// The limits under which that many tokens would not have been merged, at any time since they were taken.
std::string WasmHistory::what_to_raise(std::size_t num_tokens) const {
  const auto oldest = merged_tokens_.end() - static_cast<std::ptrdiff_t>(num_tokens);
  Extent most;
  for (auto one = oldest; one != merged_tokens_.end(); ++one) {
    most.num_tokens = std::max(most.num_tokens, one->most.num_tokens);
    most.num_bytes = std::max(most.num_bytes, one->most.num_bytes);
  }
  const std::size_t tokens = most.num_tokens - oldest->before.num_tokens;
  const std::size_t bytes = most.num_bytes - oldest->before.num_bytes;
  std::string raise;
  if (tokens > static_cast<std::size_t>(limits_.undo_tokens))
    raise = "undo_tokens to at least " + std::to_string(tokens);
  if (bytes > static_cast<std::size_t>(limits_.undo_bytes))
    raise += (raise.empty() ? "" : " and ") + ("undo_bytes to at least " + std::to_string(bytes));
  return raise;
}

bool WasmHistory::take_back(int count) {
  if (count < 0) throw WasmError("can't roll back a negative number of tokens");
  const auto wanted = static_cast<std::size_t>(count), there = taken_.size();
  const std::string problem = "rollback of " + std::to_string(count) + " tokens, where " + std::to_string(there);
  if (wanted > there + merged_tokens_.size()) throw WasmError(problem + " were taken");
  if (wanted > there)
    throw WasmError(problem + " can be taken back; raise " + what_to_raise(wanted - there) + " to allow it");
  bool has_run = false;
  for (int i = 0; i < count; ++i) {
    has_run |= undo(*taken_.back());
    num_bytes_ -= taken_.back()->num_bytes;
    taken_.pop_back();
  }
  return has_run;
}

bool WasmHistory::take_back_all() {
  if (merged_tokens_.empty()) return take_back(static_cast<int>(taken_.size()));
  // First what may be refused.
  if (has_merged_writes_) variables_->check_alone();
  bool has_run = take_back(static_cast<int>(taken_.size()));
  if (has_merged_writes_) variables_->restore(first_values_);
  has_merged_writes_ = false;
  if (!merged_.is_empty()) {
    shadow_.undo(merged_.whole());
    has_run = true;
  }
  merged_ = GuestChanges();
  merged_tokens_.clear();
  merged_extent_ = {};
  position_ = first_;
  return has_run;
}

void WasmHistory::copy_to(WasmHistory &other, WasmInstance &instance) const {
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
  auto taken = taken_;
  for (const auto &one : taken) variables_->share(one->writes);
  other.taken_.swap(taken);
}

void WasmHistory::Trial::check(int num_tokens) const {
  const std::size_t bytes = history_.num_bytes_ - *history_.bytes_before_trial_;
  if (bytes > static_cast<std::size_t>(history_.limits_.undo_bytes))
    throw WasmError("the steps of " + std::to_string(num_tokens) + " tokens that were tried changed " +
                    std::to_string(bytes) + " bytes; raise undo_bytes to at least that to allow it");
}

}  // namespace weft
