// Reports callbacks that wait long for the GIL.
//
// A thread that holds the GIL inside a call that can't return before a callback has run, while the callback waits for
// the GIL, is a deadlock that Python can't report, since nothing of Python runs. A native thread sees it, names the
// callback on stderr, and raises a signal for which faulthandler has a handler, which prints every Python stack
// without the GIL.
#pragma once

#include <cstdint>
#include <mutex>

namespace weft {

// Marks this thread as waiting for the GIL on behalf of the callback `name`.
class GilWait {
 public:
  GilWait(const char *name, const char *driver);
  ~GilWait();
  GilWait(const GilWait &) = delete;
  GilWait &operator=(const GilWait &) = delete;
};

// The limit in seconds, 0 for none, and the signal (0: name the callback, print no stacks).
void set_watchdog(double seconds, int signal);

// Starts the thread; later calls do nothing.
void start_watchdog();

}  // namespace weft
