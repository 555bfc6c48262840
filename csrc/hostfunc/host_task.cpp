#include "hostfunc/host_task.h"

#include <cxxabi.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "hostfunc/gil.h"
#include "hostfunc/watchdog.h"

namespace weft {
namespace {

// Never destroyed: driver threads and graphs may outlive the statics of this library.
struct Tasks {
  std::atomic<std::uint64_t> launched{0}, run{0}, freed{0}, live{0};
  std::atomic<HostTask *> released{nullptr};
  sem_t has_released;
  std::mutex mutex;  // guards the two below; never held while taking the GIL
  std::uint64_t next_handle = 1;
  std::map<std::uint64_t, HostTask *> handles;
  std::once_flag threads_started;

  Tasks() { sem_init(&has_released, 0, 0); }
};

Tasks &tasks() {
  static Tasks &it = *new Tasks;
  return it;
}

thread_local int task_depth = 0;

struct InTask {
  InTask() { ++task_depth; }
  ~InTask() { --task_depth; }
};

// Releases the task's Python objects. That may run any code and even destroy the graph that owns the task, so the task
// must not be used afterwards.
void drop_payload(HostTask *task) {
  PyObject *objects[] = {std::exchange(task->fn, nullptr), std::exchange(task->args, nullptr),
                         std::exchange(task->kwargs, nullptr)};
  for (PyObject *object : objects) Py_XDECREF(object);
}

void destroy(HostTask *task) {
  remove_handle(task->handle);
  if (task->polled) free_polled_call(task->polled);
  drop_payload(task);
  if (task->native.release) task->native.release(task->native.owner);
  delete task;
  Tasks &all = tasks();
  all.freed.fetch_add(1, std::memory_order_relaxed);
  all.live.fetch_sub(1, std::memory_order_relaxed);
}

void call_python(HostTask &task, std::uint64_t ordinal) {
  if (!task.fn) {
    fail_with_text(task.domain, ordinal, task.name,
                   "its payload was freed by free_hostfunc_user_data before it ran; free it when its graph is gone");
    return;
  }
  // Hold references during the call: an early free must not destroy the callable while it runs.
  PyObject *fn = Py_NewRef(task.fn), *args = Py_NewRef(task.args), *kwargs = Py_XNewRef(task.kwargs);
  PyObject *result = PyObject_Call(fn, args, kwargs);
  if (!result) fail_with_current_exception(task.domain, ordinal, task.name);
  Py_XDECREF(result);
  Py_XDECREF(kwargs);
  Py_DECREF(args);
  Py_DECREF(fn);
}

std::uint64_t begin_execution(HostTask &task) {
  return task.captured ? task.ordinal.fetch_add(1, std::memory_order_relaxed)
                       : task.ordinal.load(std::memory_order_relaxed);
}

void run_python(void *data) {
  HostTask *task = static_cast<HostTask *>(data);
  const std::uint64_t ordinal = begin_execution(*task);
  if (task->device || !task->domain->skips(ordinal)) {
    GilForCallback gil(task->name.c_str(), task->driver->name);
    if (gil) {
      InTask in_task;
      call_python(*task, ordinal);
      tasks().run.fetch_add(1, std::memory_order_relaxed);
    }
  }
  if (!task->captured) disown(task);
}

void call_native(HostTask &task, std::uint64_t ordinal) {
  try {
    task.native.run(task.native.data);
  } catch (abi::__forced_unwind &) {
    throw;
  } catch (const std::exception &error) {
    fail_with_text(task.domain, ordinal, task.name, error.what());
  } catch (...) {
    fail_with_text(task.domain, ordinal, task.name, "an exception that is not a std::exception");
  }
}

// A native function is refused at the end of the interpreter, as a Python callable is, although it takes no GIL here.
// The polling thread runs until the process exits, and a ctypes function crashes the process if it starts without an
// interpreter.
void run_native(void *data) {
  HostTask *task = static_cast<HostTask *>(data);
  const std::uint64_t ordinal = begin_execution(*task);
  if (!task->native.skippable || !task->domain->skips(ordinal)) {
    if (Entry entry; entry) {
      call_native(*task, ordinal);
      tasks().run.fetch_add(1, std::memory_order_relaxed);
    }
  }
  if (!task->captured) disown(task);
}

void reap() {
  sigset_t all_signals;
  sigfillset(&all_signals);
  pthread_sigmask(SIG_BLOCK, &all_signals, nullptr);
  for (;;) {
    while (sem_wait(&tasks().has_released) != 0) {
    }
    // Let tasks accumulate for a moment, so that the GIL is taken once for many of them.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    GilForCallback gil(nullptr, nullptr);
    if (!gil) return;
    drain();
  }
}

HostTask *new_task(const cu::Driver &driver, std::string name) {
  HostTask *task = new HostTask;
  task->driver = &driver;
  task->name = std::move(name);
  tasks().live.fetch_add(1, std::memory_order_relaxed);
  return task;
}

}  // namespace

HostTask *python_task(const cu::Driver &driver, std::string name, PyObject *fn, PyObject *args, PyObject *kwargs) {
  HostTask *task = new_task(driver, std::move(name));
  task->fn = Py_NewRef(fn);
  task->args = Py_NewRef(args);
  task->kwargs = Py_XNewRef(kwargs);
  return task;
}

HostTask *native_task(const cu::Driver &driver, const NativeTask &native) {
  HostTask *task = new_task(driver, native.name);
  task->native = native;
  task->native.name = "";
  return task;
}

cu::CUhostFn entry_of(const HostTask &task) { return task.native.run ? run_native : run_python; }

void disown(HostTask *task) {
  if (task->owners.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  Tasks &all = tasks();
  HostTask *head = all.released.load(std::memory_order_relaxed);
  do {
    task->next_released = head;
  } while (!all.released.compare_exchange_weak(head, task, std::memory_order_release, std::memory_order_relaxed));
  if (!head) sem_post(&all.has_released);
}

void drain() {
  Tasks &all = tasks();
  // Pop one task at a time: releasing an object may release the GIL, and another thread can then drain the rest. Only
  // holders of the GIL pop, so the head cannot be popped and pushed again between the load and the exchange (ABA).
  while (HostTask *task = all.released.load(std::memory_order_acquire)) {
    if (all.released.compare_exchange_weak(task, task->next_released, std::memory_order_acquire)) destroy(task);
  }
}

std::uint64_t add_handle(HostTask *task) {
  Tasks &all = tasks();
  std::lock_guard lock(all.mutex);
  task->handle = all.next_handle++;
  all.handles.emplace(task->handle, task);
  return task->handle;
}

HostTask *remove_handle(std::uint64_t handle) {
  Tasks &all = tasks();
  std::lock_guard lock(all.mutex);
  const auto found = all.handles.find(handle);
  if (found == all.handles.end()) return nullptr;
  HostTask *task = found->second;
  all.handles.erase(found);
  return task;
}

std::vector<std::uint64_t> handles() {
  Tasks &all = tasks();
  std::lock_guard lock(all.mutex);
  std::vector<std::uint64_t> live;
  for (const auto &entry : all.handles) live.push_back(entry.first);
  return live;
}

bool free_handle(std::uint64_t handle) {
  HostTask *task = remove_handle(handle);
  if (!task) return false;
  const bool captured = task->captured;
  drop_payload(task);
  if (!captured) disown(task);  // the handle was an owner
  drain();
  return true;
}

bool in_task() { return task_depth > 0; }

HostStats host_stats() {
  const Tasks &all = tasks();
  return {all.launched.load(), all.run.load(), all.freed.load(), all.live.load()};
}

void count_launch() { tasks().launched.fetch_add(1, std::memory_order_relaxed); }

void start_threads() {
  std::call_once(tasks().threads_started, [] {
    std::thread(reap).detach();
    start_watchdog();
  });
}

}  // namespace weft
