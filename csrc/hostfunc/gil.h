// Releasing the GIL around driver calls, and taking it for callbacks.
//
// Both are unsafe when the interpreter ends. During finalisation, CPython calls pthread_exit in a thread that takes the
// GIL, and the unwinding aborts the process at the first noexcept frame. Later there is no interpreter at all. So
// callbacks are refused after `leave_interpreter`, and a thread that CPython still ends is parked until the process
// exits.
#pragma once

#include <Python.h>

#include <optional>

#include "hostfunc/watchdog.h"

namespace weft {

// Releases the GIL during its lifetime, if this thread holds it.
class GilRelease {
 public:
  GilRelease() : state_(PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~GilRelease() noexcept(false);
  GilRelease(const GilRelease &) = delete;
  GilRelease &operator=(const GilRelease &) = delete;

 private:
  PyThreadState *state_;
};

// Marks a native function as running, so that `leave_interpreter` waits for it. Converts to false once the interpreter
// is leaving; then the function must not run. It does not take the GIL, but the function may (ctypes functions do), and
// may use memory that is freed at exit.
class Entry {
 public:
  Entry();
  ~Entry();
  Entry(const Entry &) = delete;
  Entry &operator=(const Entry &) = delete;
  explicit operator bool() const { return entered_; }

 private:
  bool entered_;
};

// Takes the GIL for a callback. Converts to false once the interpreter is leaving; then the GIL was not taken. If the
// callback waits long for the GIL, now or later, the watchdog reports `name` and `driver` (null: no report). Both must
// outlive this object.
class GilForCallback {
 public:
  GilForCallback(const char *name, const char *driver);
  ~GilForCallback();
  GilForCallback(const GilForCallback &) = delete;
  GilForCallback &operator=(const GilForCallback &) = delete;
  explicit operator bool() const { return bool(entry_); }

 private:
  Entry entry_;
  PyGILState_STATE state_{};
  std::optional<GilWatch> inside_;
};

// Refuses entries and callbacks from now on, and waits at most `seconds` for those that are running. Returns false if
// some still run. The GIL is held on entry and return.
bool leave_interpreter(double seconds);

// Installs the handlers for the end of the interpreter and for fork. Threads that CPython ends inside another C++
// library are then parked instead of aborting the process; CPython 3.14 and later does so itself. Called once, when the
// extension is loaded.
void outlive_finalisation();

}  // namespace weft
