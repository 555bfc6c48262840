// What the matchers of one grammar of LLGuidance begin with.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "grammar/llguidance/library.h"

namespace weft {

// What was spent to find the states that a matcher's lexer knows, by those that it was copied from too.
struct LexerWork {
  int masks = 0;
  std::chrono::steady_clock::duration time{};
};

// Where a grammar's matchers begin: one that is copied for each. LLGuidance finds its lexer's states as texts come to
// them, in each matcher again, and its C interface can't share them; so a matcher that ends is brought back to the
// start, and the next are copied from it with the states that it found. Threads may share it.
class LlguidanceStart {
 public:
  LlguidanceStart(llg::Handle cold, bool keeps_states) : cold_(std::move(cold)), is_done_(!keeps_states) {}

  struct Copy {
    llg::Handle handle;
    LexerWork work;
    bool is_warm;
  };

  Copy copy() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!warm_) return {clone(cold_), {}, false};
    const auto start = Clock::now();
    Copy made{clone(warm_), work_, true};
    if (Clock::now() - start > kLongestCopy) {
      warm_.reset();
      is_done_ = true;
    }
    return made;
  }

  // As if there had been no other matcher.
  llg::Handle cold() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return clone(cold_);
  }

  // Whether a matcher that has done so much work would make later ones faster.
  bool wants(const LexerWork &work) const {
    return !is_done_ && work.masks > known_ && work.masks <= kMostMasks && work.time <= kMostTime;
  }

  // Takes a matcher that is back at the start.
  void take(llg::Handle handle, const LexerWork &work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!wants(work)) return;
    warm_.swap(handle);
    work_ = work;
    known_ = work.masks;
  }

 private:
  using Clock = std::chrono::steady_clock;
  // Past this a copy with its states costs a request more than it saves.
  static constexpr std::chrono::milliseconds kLongestCopy{1};
  // So much has found what most texts need. The states are memory, and each matcher's have a limit.
  static constexpr int kMostMasks = 4096;
  static constexpr std::chrono::milliseconds kMostTime{50};

  static llg::Handle clone(const llg::Handle &from) {
    llg::Handle made(llg::api.clone_matcher(from.get()));
    if (!made) throw std::runtime_error("llguidance made no copy of a matcher");
    return made;
  }

  std::mutex mutex_;
  llg::Handle cold_, warm_;
  LexerWork work_;  // of `warm_`
  std::atomic<int> known_{0};
  std::atomic<bool> is_done_;
};

}  // namespace weft
