// The time that a thread works, whatever else the machine does meanwhile. Python-free.
#pragma once

#include <time.h>

#include <cstdint>

namespace weft {

// What the processor has worked for this thread. A call of the kernel, half a microsecond.
inline std::int64_t thread_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// What other threads have worked for this one while it waited for them; the waiting thread adds them.
inline thread_local std::int64_t worked_for_thread_ns = 0;

}  // namespace weft
