#include "hostfunc/gil.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <thread>

#include "support/awake.h"

namespace weft {
namespace {

std::atomic<bool> leaving{false};
std::atomic<int> entered{0};
thread_local int t_entered = 0;

bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

// Guards a scope that CPython may end with pthread_exit: its destructor parks the thread, so the unwinding goes no
// further.
struct ParkOnUnwind {
  bool armed = true;
  ~ParkOnUnwind() {
    while (armed) pause();
  }
};

std::terminate_handler previous_handler = nullptr;

// The terminate handler. When CPython ends a thread inside another library's code, the unwinding of pthread_exit may
// reach a noexcept frame and so std::terminate. There is no current exception then, and the thread is parked.
[[noreturn]] void park_or_terminate() {
  if (!std::current_exception() && (is_finalizing() || !Py_IsInitialized()))
    for (;;) pause();
  if (previous_handler) previous_handler();
  std::abort();
}

}  // namespace

void outlive_finalisation() {
  previous_handler = std::set_terminate(park_or_terminate);
  // A forked child lacks the other threads, so drop their entries. Otherwise the child's exit would wait for them.
  pthread_atfork(nullptr, nullptr, [] { entered.store(t_entered); });
}

GilRelease::~GilRelease() noexcept(false) {
  if (!state_) return;
  ParkOnUnwind park;
  PyEval_RestoreThread(state_);
  park.armed = false;
}

Entry::Entry() {
  // The order matters. This increments the count and then reads the flag, while `leave_interpreter` sets the flag and
  // then reads the count. So at least one of them sees the other.
  entered.fetch_add(1);
  entered_ = !leaving.load();
  if (entered_)
    ++t_entered;
  else
    entered.fetch_sub(1);
}

Entry::~Entry() {
  if (!entered_) return;
  --t_entered;
  entered.fetch_sub(1);
}

GilForCallback::GilForCallback(const char *name, const char *driver) {
  if (!entry_) return;
  note_that_may_wait();
  ParkOnUnwind park;
  {
    GilWatch waiting(GilWatch::Phase::kWaiting, name, driver);
    state_ = PyGILState_Ensure();
  }
  park.armed = false;
  inside_.emplace(GilWatch::Phase::kInside, name, driver);
}

GilForCallback::~GilForCallback() {
  if (!entry_) return;
  inside_.reset();
  // CPython may have ended this thread inside the callback. Then it has no GIL to release, so park it.
  while (is_finalizing()) pause();
  PyGILState_Release(state_);
}

bool leave_interpreter(double seconds) {
  leaving.store(true);
  GilRelease release;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (entered.load() != 0) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace weft
