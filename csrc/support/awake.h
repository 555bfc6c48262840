// A clock of the time in which this process runs: it stands still while the process is stopped, moved to another
// machine, or out of its group's share of the processor. By the system's clocks such a pause looks like a wait, and a
// limit of time held against it would end what did nothing wrong. Python-free.
//
// While somebody listens, a thread of its own sleeps kAwakeTickNs again and again and adds what passed. What passes
// beyond twice as much counts as one tick: then this thread did not run either, as others on a busy machine.
#pragma once

#include <atomic>
#include <cstdint>

namespace weft {

inline constexpr std::int64_t kAwakeTickNs = 10'000'000;

// Of use as a difference of two moments, right to a tick, while somebody listens between them.
std::int64_t awake_ns();

// Listens, and counts from here on. Throws std::system_error where there is no thread to be had.
class AwakeWatch {
 public:
  AwakeWatch();
  ~AwakeWatch();
  AwakeWatch(const AwakeWatch &) = delete;
  AwakeWatch &operator=(const AwakeWatch &) = delete;
  std::int64_t passed_ns() const { return awake_ns() - began_ns_; }

 private:
  const std::int64_t began_ns_;
};

// Ends this process by SIGALRM where it has run for so long; 0: never mind. Of one process there is one such limit.
void end_process_after(std::int64_t ns);

namespace awake {
// The thread listens by itself for as long as this is set again and again.
inline std::atomic<bool> is_wanted{false};
inline std::atomic<bool> is_ticking{false};
void begin_ticking() noexcept;
}  // namespace awake

// The number of calls of this thread that may wait.
inline thread_local std::int64_t calls_that_may_wait = 0;

// Marks a call that may wait: of Python, or of a plug-in. All other calls within a guide compute until they return.
// The clock then ticks for a second.
inline void note_that_may_wait() {
  ++calls_that_may_wait;
  if (!awake::is_wanted.load(std::memory_order_relaxed)) awake::is_wanted.store(true, std::memory_order_relaxed);
  if (!awake::is_ticking.load(std::memory_order_relaxed)) awake::begin_ticking();
}

}  // namespace weft
