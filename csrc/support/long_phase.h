// A loop over host work of unknown duration. It uses kernel threads that are awake, and wakes them only if it takes
// long. Python-free.
#pragma once

#include <chrono>
#include <cstdint>

#include "support/kernel_threads.h"

namespace weft {

class LongPhase {
 public:
  // Up to `helpers` threads may help; with 0 the caller does everything.
  explicit LongPhase(int helpers) : threads_(helpers + 1) {}

  // Calls `body(i)` once for each i in [0, count), in any order, and returns when all are done. If a helper sleeps,
  // the caller starts alone, and wakes them when the items so far have taken longer than a hand-off to other threads.
  template <class Body>
  void for_each(int count, Body &&body) const {
    if (threads_ > 1 && count > 1 && helpers_are_awake()) {
      for_rows(count, threads_, kAwakeCost, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) body(static_cast<int>(i));
      });
      return;
    }
    int first = 0;
    const auto start = std::chrono::steady_clock::now();
    while (first < count && (threads_ < 2 || std::chrono::steady_clock::now() - start < kHandOff)) body(first++);
    for_rows(count - first, threads_, kCost, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) body(first + static_cast<int>(i));
    });
  }

 private:
  static constexpr std::chrono::microseconds kHandOff{20};
  static constexpr std::int64_t kCost = 150'000;  // some 7 us, the time of a matcher for one token

  // Less than the cost, so that a few items wake no helper that has just gone to sleep.
  static constexpr std::int64_t kAwakeCost = 20'000;

  int threads_;
};

}  // namespace weft
