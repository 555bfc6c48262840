// The processor time of a thread, which is independent of other load on the machine. Python-free.
#pragma once

#include <time.h>

#include <cstdint>

namespace weft {

// Returns the processor time of this thread so far. It is a system call, which takes half a microsecond.
inline std::int64_t thread_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// Processor time that other threads spent working for this thread while it waited for them. This thread adds it up
// itself.
inline thread_local std::int64_t worked_for_thread_ns = 0;

}  // namespace weft
