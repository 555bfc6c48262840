// Wall-clock time, and counters of calls and their time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace weft {

inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Counts one call and its time, from construction to destruction.
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

}  // namespace weft
