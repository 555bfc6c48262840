#include "gil.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "watchdog.h"

namespace weft {
namespace {

std::atomic<bool> leaving{false};
std::atomic<int> entered{0};

bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

// In a scope that CPython may end with pthread_exit: unwinding stops here.
struct ParkOnUnwind {
  bool armed = true;
  ~ParkOnUnwind() {
    while (armed) pause();
  }
};

}  // namespace

GilRelease::~GilRelease() noexcept(false) {
  if (!state_) return;
  ParkOnUnwind park;
  PyEval_RestoreThread(state_);
  park.armed = false;
}

GilForCallback::GilForCallback(const char *name, const char *driver) {
  // The increment comes before the look at the flag, and `leave_interpreter` does the two in the other order: one of
  // them sees the other.
  entered.fetch_add(1);
  entered_ = !leaving.load();
  if (!entered_) {
    entered.fetch_sub(1);
    return;
  }
  ParkOnUnwind park;
  GilWait wait(name, driver);
  state_ = PyGILState_Ensure();
  park.armed = false;
}

GilForCallback::~GilForCallback() {
  if (!entered_) return;
  // Reached without the GIL when CPython ends this thread inside the callback.
  while (is_finalizing()) pause();
  PyGILState_Release(state_);
  entered.fetch_sub(1);
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
