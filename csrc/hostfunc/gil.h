// The GIL, in both directions: let go of it around driver calls, take it for callbacks.
//
// Neither direction survives the end of the interpreter by itself. CPython ends a thread that asks for the GIL during
// finalisation with pthread_exit, whose unwinding aborts the process at the first noexcept frame; a thread that asks
// later finds no interpreter. So a callback is refused once `leave_interpreter` was called, and a thread that CPython
// ends all the same is parked until the process is gone.
#pragma once

#include <Python.h>

#include <optional>

#include "hostfunc/watchdog.h"

namespace weft {

// Releases the GIL for as long as it lives, if this thread holds it.
class GilRelease {
 public:
  GilRelease() : state_(PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~GilRelease() noexcept(false);
  GilRelease(const GilRelease &) = delete;
  GilRelease &operator=(const GilRelease &) = delete;

 private:
  PyThreadState *state_;
};

// Entry for as long as it lives: `leave_interpreter` waits for it. False where the interpreter is leaving. Without the
// GIL, for native functions: they may take it by themselves (those of ctypes do), and use what the process's end frees.
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

// Takes the GIL for a callback; false where the interpreter is leaving, and then there is no GIL. `name` and `driver`
// are what the watchdog reports if the callback is kept from the GIL for long, now or later (null: it does not); they
// live as long as this does.
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

// From now on entries and callbacks are refused; waits at most `seconds` for those that run. GIL held on entry and
// return. False if some still run.
bool leave_interpreter(double seconds);

// A thread that CPython ends in a frame of any C++ library is parked, too, as CPython itself does from 3.14 on: it does
// not take the process with it. Called once, when the extension is loaded.
void outlive_finalisation();

}  // namespace weft
