// A boolean setting that the host changes and the callback thread reads, in the order of iterations. Python-free.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>

#include "guided/state.h"

namespace weft {

// A new value applies from the next snapshot that is pushed; iterations in flight keep the old value.
class SnapshotSwitch {
 public:
  explicit SnapshotSwitch(const GuidedState &state) : state_(state) {}

  // Host side: sets the value for iterations pushed from now on.
  void set(bool is_on) {
    if (is_on == last_) return;
    std::lock_guard<std::mutex> lock(mutex_);
    last_ = is_on;
    changes_.emplace_back(state_.pushed_epoch(), is_on);
    has_changes_.store(true, std::memory_order_release);
  }

  // Callback side: call it in each iteration before `is_on`.
  void begin() {
    if (!has_changes_.load(std::memory_order_acquire)) return;
    std::lock_guard<std::mutex> lock(mutex_);
    for (; !changes_.empty() && changes_.front().first < state_.epoch(); changes_.pop_front())
      is_on_ = changes_.front().second;
    has_changes_.store(!changes_.empty(), std::memory_order_relaxed);
  }

  // Callback side: the value for the current iteration.
  bool is_on() const { return is_on_; }

 private:
  const GuidedState &state_;
  bool last_ = false;   // host side
  bool is_on_ = false;  // callback side
  std::atomic<bool> has_changes_{false};
  std::mutex mutex_;
  std::deque<std::pair<std::uint64_t, bool>> changes_;  // the last epoch with the old value, and the new value
};

}  // namespace weft
