// The GIL in both directions: released around driver calls, taken for callbacks.
//
// The end of the interpreter breaks both. CPython ends a thread that asks for the GIL during finalisation with
// pthread_exit, whose unwinding aborts the process at the first noexcept frame; a thread that asks later finds no
// interpreter. So callbacks are refused after `leave_interpreter`, and a thread that CPython still ends is parked until
// the process exits.
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

// An entry that `leave_interpreter` waits for; false once the interpreter is leaving. It does not take the GIL. It is
// for native functions, which may take the GIL themselves (those of ctypes do) and use memory that the process's end
// frees.
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

// Takes the GIL for a callback; false once the interpreter is leaving, and then the GIL is not taken. The watchdog
// reports `name` and `driver` (null: nothing) if the callback waits long for the GIL, now or later; both outlive this
// object.
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

// Refuses entries and callbacks from now on, and waits at most `seconds` for those that run. False if some still run.
// GIL held on entry and return.
bool leave_interpreter(double seconds);

// Also parks threads that CPython ends in a frame of another C++ library, which would abort the process; CPython does
// so itself from 3.14 on. Called once, when the extension is loaded.
void outlive_finalisation();

}  // namespace weft
