#include "wasm_history.h"

#include <numeric>
#include <string>
#include <utility>

#include "wasm_error.h"

namespace weft {

WasmHistory::WasmHistory(std::shared_ptr<WasmVariables> variables, const WasmLimits &limits)
    : variables_(std::move(variables)), limits_(limits) {}

WasmHistory::~WasmHistory() {
  for (const auto &taken : taken_) variables_->keep(taken->writes);
}

void WasmHistory::start(const WasmInstance &instance, WasmPosition position, const WasmVariables::Writes &writes) {
  variables_->keep(writes);
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

void WasmHistory::close(WasmPosition next) {
  position_ = std::move(next);
  num_bytes_ += taken_.back()->num_bytes;
  if (bytes_before_trial_) return;
  while (!taken_.empty() && (taken_.size() > static_cast<std::size_t>(limits_.undo_tokens) ||
                             num_bytes_ > static_cast<std::size_t>(limits_.undo_bytes)))
    merge_oldest();
}

void WasmHistory::merge_oldest() {
  const Taken &oldest = *taken_.front();
  if (merged_sizes_.empty()) first_ = oldest.before;
  const std::size_t num_bytes = oldest.num_bytes;
  if (oldest.has_run) merged_.append(oldest.change);
  merged_sizes_.push_back(num_bytes);
  has_merged_writes_ |= !oldest.writes.empty();
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

bool WasmHistory::take_back(int count) {
  if (count < 0) throw WasmError("can't roll back a negative number of tokens");
  const auto wanted = static_cast<std::size_t>(count), there = taken_.size();
  const std::string problem = "rollback of " + std::to_string(count) + " tokens, where " + std::to_string(there);
  if (wanted > there + merged_sizes_.size()) throw WasmError(problem + " were taken");
  if (wanted > there) {
    const auto newest = merged_sizes_.rbegin();
    const std::size_t bytes = std::accumulate(newest, newest + static_cast<std::ptrdiff_t>(wanted - there), num_bytes_);
    std::string raise;
    if (count > limits_.undo_tokens) raise = "undo_tokens to at least " + std::to_string(count);
    if (bytes > static_cast<std::size_t>(limits_.undo_bytes))
      raise += (raise.empty() ? "" : " and ") + ("undo_bytes to at least " + std::to_string(bytes));
    throw WasmError(problem + " can be taken back; raise " + raise + " to allow it");
  }
  bool has_run = false;
  for (int i = 0; i < count; ++i) {
    has_run |= undo(*taken_.back());
    num_bytes_ -= taken_.back()->num_bytes;
    taken_.pop_back();
  }
  return has_run;
}

bool WasmHistory::take_back_all() {
  if (merged_sizes_.empty()) return take_back(static_cast<int>(taken_.size()));
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
  merged_sizes_.clear();
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
  other.merged_sizes_ = merged_sizes_;
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
