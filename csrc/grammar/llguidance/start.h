// The common start of one LLGuidance grammar's matchers, with the lexer states that earlier matchers built.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "grammar/llguidance/library.h"

namespace weft {

// The work that built a matcher's lexer states, including the work of the matchers that it was copied from.
struct LexerWork {
  int masks = 0;
  std::chrono::steady_clock::duration time{};
};

// A grammar's matchers are copies of one matcher at the start. LLGuidance builds lexer states lazily and separately in
// each matcher, and its C interface cannot share them. So a matcher that ends may be rolled back to the start and kept.
// The next matchers are then copied from it, together with its states. Threads may share this object.
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

  // A matcher at the start, without lexer states of other matchers.
  llg::Handle cold() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return clone(cold_);
  }

  // Whether the lexer states of a matcher that did this work should be kept for later matchers.
  bool wants(const LexerWork &work) const {
    return !is_done_ && work.masks > known_ && work.masks <= kMostMasks && work.time <= kMostTime;
  }

  // Keeps a matcher that was rolled back to the start.
  void take(llg::Handle handle, const LexerWork &work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!wants(work)) return;
    warm_.swap(handle);
    work_ = work;
    known_ = work.masks;
  }

 private:
  using Clock = std::chrono::steady_clock;
  // If a copy takes longer than this, it costs more than the states save.
  static constexpr std::chrono::milliseconds kLongestCopy{1};
  // States are not kept from a matcher that did more work than this. Most texts need no further states, and states take
  // memory and count towards the lexer's limit.
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
