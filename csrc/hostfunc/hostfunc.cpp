// Launches host functions through the driver table: the same code for CUDA and for the CPU.
#include <utility>

#include "driver/context.h"
#include "driver/cpu/cpu.h"
#include "driver/error.h"
#include "hostfunc/gil.h"
#include "hostfunc/host_task.h"

namespace weft {
namespace {

using namespace cu;

struct Outcome {
  const char *call;
  CUresult code;
  bool graph_owns;
  std::uint64_t handle;
};

void destroy_user_object(void *task) { disown(static_cast<HostTask *>(task)); }

// Makes the graph being captured an owner of the task. This happens before the node is added.
Outcome retain(const Driver &driver, CUgraph graph, HostTask *task) {
  CUuserObject object = nullptr;
  CUresult code = driver.cuUserObjectCreate(&object, task, destroy_user_object, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  if (code != CUDA_SUCCESS) return {"cuUserObjectCreate", code, false, 0};
  code = driver.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
  if (code != CUDA_SUCCESS) driver.cuUserObjectRelease(object, 1);
  return {"cuGraphRetainUserObject", code, true, 0};
}

// Captures the task as a polled call, without a host node. Returns false if that is not possible; then nothing was
// captured.
bool submit_polled(const Driver &driver, CUstream stream, HostTask *task, Outcome &outcome) {
  if (!task->captured || !task->native.polled || !can_poll(driver)) return false;
  task->polled = new_polled_call(driver, entry_of(*task), task);
  if (!task->polled) return false;
  outcome.call = "cuStreamWriteValue32";
  outcome.code = launch_polled(stream, *task->polled, task->name.c_str());
  if (outcome.code == CUDA_ERROR_NOT_SUPPORTED) {
    free_polled_call(std::exchange(task->polled, nullptr));
    return false;
  }
  if (outcome.code == CUDA_SUCCESS) task->domain->polled.fetch_add(1);
  return true;
}

// Makes the driver calls of one launch, without the GIL. With `keep`, an eager task is not freed after it ran.
Outcome submit(const Driver &driver, CUstream stream, HostTask *task, bool keep) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  Outcome outcome{"cuCtxSetCurrent", ensure_context(driver), false, 0};
  if (outcome.code != CUDA_SUCCESS) return outcome;
  outcome.call = "cuStreamGetCaptureInfo";
  outcome.code = driver.cuStreamGetCaptureInfo(stream, &status, &id, &graph, nullptr, nullptr, nullptr);
  if (outcome.code != CUDA_SUCCESS) return outcome;
  if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
    return {"cuLaunchHostFunc", CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, false, 0};

  task->captured = status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (task->captured) {
    task->domain = capture_domain(driver, id);
    outcome = retain(driver, graph, task);
    if (outcome.code != CUDA_SUCCESS) return outcome;
  } else {
    task->domain = stream_domain(driver, stream);
    task->ordinal.store(task->domain->next.fetch_add(1));
    if (keep) task->owners.store(2);
  }
  if (task->fn && !task->device && (task->captured || keep)) outcome.handle = add_handle(task);

  if (submit_polled(driver, stream, task, outcome)) return outcome;
  if (&driver == &cpu_driver()) cpu::label_next(task->name.c_str());
  // Do not use an eager task after this call: it may already have run and been freed.
  outcome.call = task->device ? "launch" : "cuLaunchHostFunc";
  outcome.code = task->device ? cpu::launch_device(stream, entry_of(*task), task)
                              : driver.cuLaunchHostFunc(stream, entry_of(*task), task);
  return outcome;
}

// Takes ownership of `task` even if it throws.
std::uint64_t launch(const Driver &driver, CUstream stream, HostTask *task, bool keep) {
  GilRelease release;
  const Outcome outcome = submit(driver, stream, task, keep);
  if (outcome.code == CUDA_SUCCESS) {
    count_launch();
  } else {
    remove_handle(outcome.handle);
    if (!outcome.graph_owns) {
      task->owners.store(1);
      disown(task);
    }
    check(outcome.code, outcome.call, driver);
  }
  return outcome.handle;
}

}  // namespace

void launch_native(const Driver &driver, CUstream stream, const NativeTask &task) {
  start_threads();
  launch(driver, stream, native_task(driver, task), false);
}

void launch_native_device(CUstream stream, const NativeTask &native) {
  start_threads();
  HostTask *task = native_task(cpu_driver(), native);
  task->device = true;
  launch(cpu_driver(), stream, task, false);
}

std::uint64_t launch_python(const Driver &driver, CUstream stream, std::string name, PyObject *fn, PyObject *args,
                            PyObject *kwargs, bool free_after_run) {
  start_threads();
  return launch(driver, stream, python_task(driver, std::move(name), fn, args, kwargs), !free_after_run);
}

void launch_device(CUstream stream, std::string name, PyObject *fn, PyObject *args, PyObject *kwargs) {
  start_threads();
  HostTask *task = python_task(cpu_driver(), std::move(name), fn, args, kwargs);
  task->device = true;
  launch(cpu_driver(), stream, task, false);
}

}  // namespace weft
