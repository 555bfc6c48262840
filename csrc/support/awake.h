// A clock that advances only while this process can run. It stops while the process is stopped, migrated to
// another machine, or throttled by its cgroup. With the system's clocks such a pause looks like a wait, and a time
// limit would end a request through no fault of its own. Python-free.
//
// The clock ticks while it has listeners, and for a second after each `note_that_may_wait`. Its thread sleeps for
// kAwakeTickNs at a time and adds the time that passed. If more than two ticks passed, it adds only one: this thread
// could not run, so the others may not have run either.
#pragma once

#include <atomic>
#include <cstdint>

namespace weft {

inline constexpr std::int64_t kAwakeTickNs = 10'000'000;

// Returns the clock's time. The difference of two readings is exact to one tick if the clock had a listener all the
// time between them.
std::int64_t awake_ns();

// A listener that measures the time since its construction. Throws std::system_error if no thread can be started.
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

// Ends this process with SIGALRM after it has run for `ns`; 0 cancels the limit. A process has one such limit.
void end_process_after(std::int64_t ns);

namespace awake {
// Setting this keeps the clock ticking for another second.
inline std::atomic<bool> is_wanted{false};
inline std::atomic<bool> is_ticking{false};
void begin_ticking() noexcept;
}  // namespace awake

// The number of calls of this thread so far that may have waited.
inline thread_local std::int64_t calls_that_may_wait = 0;

// Call it before a call into Python or a plug-in, which may wait. All other calls of a guide compute until they return.
// It also keeps this file's clock ticking for a second.
inline void note_that_may_wait() {
  ++calls_that_may_wait;
  if (!awake::is_wanted.load(std::memory_order_relaxed)) awake::is_wanted.store(true, std::memory_order_relaxed);
  if (!awake::is_ticking.load(std::memory_order_relaxed)) awake::begin_ticking();
}

}  // namespace weft
