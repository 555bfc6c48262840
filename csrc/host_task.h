// One callback: a Python callable with its arguments, or a native function with a pointer.
//
// A task launched eagerly is freed after it ran. A task launched in capture belongs to the graph, through a user
// object, and goes with the last exec made from it. Release never happens on the driver's thread: the task is
// queued to a reaper thread, which takes the GIL.
#pragma once

#include <cstdint>

#include "driver.h"

namespace weft {

// What a native task is: a function, its data, and a way to let go of what keeps the data alive.
struct NativeTask {
  void (*run)(void *data) = nullptr;
  void *data = nullptr;
  void *owner = nullptr;                     // passed to `release` on the reaper thread; may be null
  void (*release)(void *owner) = nullptr;    // may be null
  const char *name = "";                     // copied
};

// Launches `task` on `stream`; a captured task belongs to the graph. Driver errors are thrown as DriverError.
void launch_native(const cu::Driver &driver, cu::CUstream stream, const NativeTask &task);

}  // namespace weft
