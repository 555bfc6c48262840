// The CPU driver's table. Every call on its objects takes the driver's one lock, and fails inside a callback.
#include "driver/cpu/calls.h"
#include "driver/error.h"

namespace weft::cpu {

using namespace cu;

namespace {

thread_local const char *t_label = "";

template <auto function>
struct Guarded;
template <class... Args, CUresult (*function)(State &, Lock &, Args...)>
struct Guarded<function> {
  static CUresult call(Args... args) {
    if (in_callback()) return CUDA_ERROR_NOT_PERMITTED;
    State &s = state();
    Lock lock(s.mutex);
    try {
      return function(s, lock, args...);
    } catch (const std::exception &) {  // out of memory, or of threads
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
};

CUresult init(unsigned flags) { return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

CUresult driver_version(int *version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = 13000;  // the CUDA version whose rules this driver follows
  return CUDA_SUCCESS;
}

CUresult error_name(CUresult error, const char **text) {
  const ErrorText *known = error_text(error);
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  *text = known ? known->name : nullptr;
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult error_string(CUresult error, const char **text) {
  const ErrorText *known = error_text(error);
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  *text = known ? known->meaning : nullptr;
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult change_schedule(State &s, Lock &, Schedule schedule, std::uint64_t seed) {
  if (s.outstanding > 0 || s.player || !s.captures.empty()) return CUDA_ERROR_ILLEGAL_STATE;
  if (schedule == Schedule::kThreads && !start_host_thread(s)) return CUDA_ERROR_OUT_OF_MEMORY;
  s.schedule = schedule;
  s.random = seed;
  s.newest_first = seed % 2 == 1;
  s.changes_sides = seed > 1;
  return CUDA_SUCCESS;
}

}  // namespace

State::State() : legacy(std::make_shared<Stream>()) {
  legacy->non_blocking = false;
  living.push_back(legacy);
}

State &state() {
  static State *s = new State;
  return *s;
}

const char *take_label() {
  const char *label = t_label;
  t_label = "";
  return label;
}

void label_next(const char *label) {
  State &s = state();
  Lock lock(s.mutex);
  t_label = s.labels.emplace(label).first->c_str();
}

const char *node_label(CUgraphNode node) {
  State &s = state();
  Lock lock(s.mutex);
  return s.nodes.count(node) ? node->work.label : "";
}

CUresult set_schedule(Schedule schedule, std::uint64_t seed) { return Guarded<change_schedule>::call(schedule, seed); }

CUresult launch_device(CUstream stream, CUhostFn fn, void *user_data) {
  return Guarded<launch_kernel>::call(stream, fn, user_data);
}

}  // namespace weft::cpu

namespace weft {

const cu::Driver &cpu_driver() {
  using namespace cpu;
  static const cu::Driver driver = [] {
    cu::Driver d{};
    d.name = "cpu";
    d.cuInit = init;
    d.cuDriverGetVersion = driver_version;
    d.cuGetErrorName = error_name;
    d.cuGetErrorString = error_string;
    d.cuCtxSynchronize = Guarded<context_synchronize>::call;
    d.cuStreamCreate = Guarded<stream_create>::call;
    d.cuStreamCreateWithPriority = Guarded<stream_create_with_priority>::call;
    d.cuStreamDestroy = Guarded<stream_destroy>::call;
    d.cuStreamSynchronize = Guarded<stream_synchronize>::call;
    d.cuStreamQuery = Guarded<stream_query>::call;
    d.cuStreamWaitEvent = Guarded<stream_wait_event>::call;
    d.cuStreamBeginCapture = Guarded<stream_begin_capture>::call;
    d.cuStreamEndCapture = Guarded<stream_end_capture>::call;
    d.cuStreamIsCapturing = Guarded<stream_is_capturing>::call;
    d.cuStreamGetCaptureInfo = Guarded<stream_capture_info>::call;
    d.cuEventCreate = Guarded<event_create>::call;
    d.cuEventDestroy = Guarded<event_destroy>::call;
    d.cuEventRecord = Guarded<event_record>::call;
    d.cuEventQuery = Guarded<event_query>::call;
    d.cuEventSynchronize = Guarded<event_synchronize>::call;
    d.cuEventElapsedTime = Guarded<event_elapsed_time>::call;
    d.cuLaunchHostFunc = Guarded<launch_host_func>::call;
    d.cuLaunchHostFunc_v2 = nullptr;
    d.cuMemcpyAsync = Guarded<memcpy_async>::call;
    d.cuStreamWriteValue32 = Guarded<stream_write_value>::call;
    d.cuStreamWaitValue32 = Guarded<stream_wait_value>::call;
    d.cuGraphInstantiate = Guarded<graph_instantiate>::call;
    d.cuGraphLaunch = Guarded<graph_launch>::call;
    d.cuGraphDestroy = Guarded<graph_destroy>::call;
    d.cuGraphExecDestroy = Guarded<graph_exec_destroy>::call;
    d.cuGraphGetNodes = Guarded<graph_get_nodes>::call;
    d.cuGraphGetEdges = Guarded<graph_get_edges>::call;
    d.cuGraphNodeGetType = Guarded<graph_node_get_type>::call;
    d.cuUserObjectCreate = Guarded<user_object_create>::call;
    d.cuUserObjectRelease = Guarded<user_object_release>::call;
    d.cuGraphRetainUserObject = Guarded<graph_retain_user_object>::call;
    return d;
  }();
  return driver;
}

}  // namespace weft
