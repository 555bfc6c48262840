// Reports callbacks that wait long for the GIL, at their start or later.
//
// A thread may hold the GIL inside a call that waits for a callback, while the callback waits for the GIL. Python
// cannot report this deadlock, because no Python code runs. A native thread detects it, names the callback on stderr,
// and raises a signal with a handler of faulthandler, which prints every Python stack without the GIL.
//
// A callback inside Python may release the GIL and then wait to retake it. CPython does not expose this wait. So while
// a callback stays inside Python, a second native thread tries to take the GIL too. If that takes longer than the
// limit, the callback cannot get the GIL either, or it holds the GIL itself in a long call.
#pragma once

#include <cstdint>
#include <mutex>

namespace weft {

// During its lifetime, marks this thread as waiting for the GIL or as inside Python, for the callback `name` (null: no
// callback). `name` and `driver` must outlive it.
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
  std::int64_t since_;  // all members hold the previous mark, which the destructor restores
  double next_report_;
};

// Sets the limit in seconds (0: none), and faulthandler's signal (0: name the callback but print no stacks).
void set_watchdog(double seconds, int signal);

// Starts the watchdog's two threads. Later calls do nothing.
void start_watchdog();

}  // namespace weft
