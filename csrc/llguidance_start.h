// What the matchers of one grammar of LLGuidance begin with.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "llguidance_library.h"

namespace weft {

// Where a grammar's matchers begin: one that is copied for each. LLGuidance finds its lexer's states as texts come to
// them, in each matcher anew, and its C interface can't share them; so a matcher that ends is brought back to the
// start, and the next are copied from it with the states that it found.
class LlguidanceStart {
 public:
  explicit LlguidanceStart(llg::Handle cold) : cold_(std::move(cold)) {}

  struct Copy {
    llg::Handle handle;
    int lived;  // masks that were filled to find the states that it knows
  };

  Copy copy() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto start = Clock::now();
    Copy made{llg::Handle(llg::api.clone_matcher(warm_ ? warm_.get() : cold_.get())), lived_};
    if (!made.handle) throw std::runtime_error("llguidance made no copy of a matcher");
    if (warm_ && Clock::now() - start > kLongestCopy) forget();
    return made;
  }

  // Whether a matcher that filled so many masks, its ancestors' with them, would make later ones faster.
  bool wants(int lived) const {
    const int known = lived_.load(std::memory_order_relaxed);
    return known < kEnough && lived > known;
  }

  // Takes a matcher that is back at the start.
  void take(llg::Handle handle, int lived) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!wants(lived)) return;
    warm_.swap(handle);
    lived_ = lived;
  }

 private:
  using Clock = std::chrono::steady_clock;
  // Past this a copy with its states costs a request more than finding them.
  static constexpr std::chrono::milliseconds kLongestCopy{1};
  // So many masks have found what most texts need; a bound keeps the states, which have a limit, to requests.
  static constexpr int kEnough = 4096;

  void forget() {
    warm_.reset();
    lived_ = 0;
  }

  std::mutex mutex_;
  llg::Handle cold_, warm_;
  std::atomic<int> lived_{0};
};

}  // namespace weft
