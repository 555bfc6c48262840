// One callback: a Python callable with its arguments, or a native function with a pointer.
//
// An eagerly launched task is freed after it ran, unless it has a handle: then `free_handle` frees it. A captured task
// belongs to the graph through a user object, and is freed after the graph and all execs made from it. Tasks are never
// freed on the driver's thread: they are queued, and a thread that holds the GIL frees them, usually the reaper thread.
#pragma once

#include <Python.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "driver/driver.h"
#include "driver/polling/polled.h"
#include "hostfunc/failures.h"

namespace weft {

// A native task: a function, its data, and the owner of the data.
struct NativeTask {
  void (*run)(void *data) = nullptr;
  void *data = nullptr;
  void *owner = nullptr;                   // passed to `release`, with the GIL held; may be null
  void (*release)(void *owner) = nullptr;  // may be null
  const char *name = "";                   // copied
  bool skippable = false;                  // skipped after a failure in its domain, as a Python callable is
  bool polled = false;  // when captured, run by the polling thread, if the driver can (driver/polling/polled.h)
};

// One task: the data of a host node. The GIL guards its Python objects.
struct HostTask {
  const cu::Driver *driver;
  std::string name;
  PyObject *fn = nullptr, *args = nullptr, *kwargs = nullptr;  // owned; null: native, or freed early (a tombstone)
  NativeTask native{};
  bool device = false;    // device work of the CPU driver: never skipped
  bool captured = false;  // belongs to a graph, and may run many times
  std::shared_ptr<Domain> domain;
  std::atomic<std::uint64_t> ordinal{0};  // of the launch, or of a captured task's next execution
  std::atomic<int> owners{1};             // the node, and the handle of a kept eager launch
  std::uint64_t handle = 0;               // 0: none
  HostTask *next_released = nullptr;
  PolledCall *polled = nullptr;  // its words, if it has no host node
};

// A new task that is counted as live. `python_task` needs the GIL.
HostTask *python_task(const cu::Driver &driver, std::string name, PyObject *fn, PyObject *args, PyObject *kwargs);
HostTask *native_task(const cu::Driver &driver, const NativeTask &task);

// Returns the function that the driver must call with the task. It runs the task, and disowns an eager task afterwards.
cu::CUhostFn entry_of(const HostTask &task);

// Removes one owner. Removing the last one queues the task for the reaper. Takes no lock and no GIL.
void disown(HostTask *task);
// Frees the queued tasks. GIL held.
void drain();

// Registers a handle for a Python task that can be freed early. `remove_handle` returns its task, or null for an
// unknown handle.
std::uint64_t add_handle(HostTask *task);
HostTask *remove_handle(std::uint64_t handle);
std::vector<std::uint64_t> handles();
// Drops the callable of a live handle. Returns false for an unknown handle. GIL held.
bool free_handle(std::uint64_t handle);

// Whether this thread is inside a Python callable of a task.
bool in_task();

struct HostStats {
  std::uint64_t launched, run, freed, live;
};
HostStats host_stats();
void count_launch();

// Starts the reaper and the watchdog; later calls do nothing.
void start_threads();

// Launches a native task on `stream`, with or without the GIL held. All launches may throw DriverError.
void launch_native(const cu::Driver &driver, cu::CUstream stream, const NativeTask &task);

// Launches a Python callable. Returns a handle if it is captured or `free_after_run` is false, else 0. `args` is a
// tuple, `kwargs` a dict or null. GIL held.
std::uint64_t launch_python(const cu::Driver &driver, cu::CUstream stream, std::string name, PyObject *fn,
                            PyObject *args, PyObject *kwargs, bool free_after_run);

// These launch a native task or a Python callable as device work of the CPU driver.
void launch_native_device(cu::CUstream stream, const NativeTask &task);
void launch_device(cu::CUstream stream, std::string name, PyObject *fn, PyObject *args, PyObject *kwargs);

}  // namespace weft
