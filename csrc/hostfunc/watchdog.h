// Reports callbacks that are kept from the GIL for long: to begin, or to go on.
//
// A thread that holds the GIL inside a call that can't return before a callback has run, while the callback waits for
// the GIL, is a deadlock that Python can't report, since nothing of Python runs. A native thread sees it, names the
// callback on stderr, and raises a signal for which faulthandler has a handler, which prints every Python stack
// without the GIL.
//
// A callback that is inside Python may let go of the GIL and wait to get it back. CPython does not report it, so while
// a callback stays inside, a second native thread asks for the GIL: if it gets none for as long as the limit, neither
// did the callback.
#pragma once

#include <cstdint>
#include <mutex>

namespace weft {

// Marks this thread as waiting for the GIL, or as inside Python, on behalf of the callback `name` (null: of none), for
// as long as it lives. `name` and `driver` live at least as long.
class GilWatch {
 public:
  enum class Phase { kWaiting, kInside };
  GilWatch(Phase phase, const char *name, const char *driver);
  ~GilWatch();
  GilWatch(const GilWatch &) = delete;
  GilWatch &operator=(const GilWatch &) = delete;

 private:
  Phase phase_;
  const char *name_, *driver_;
  std::int64_t since_;  // of what it interrupts, as are those above
  double next_report_;
};

// The limit in seconds, 0 for none, and the signal (0: name the callback, print no stacks).
void set_watchdog(double seconds, int signal);

// Starts the threads; later calls do nothing.
void start_watchdog();

}  // namespace weft
