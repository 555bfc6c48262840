// CUDA's table, resolved from libcuda.so.1 at run time, so that building and loading weft need no CUDA.
//
// It makes no context current; each calling thread uses `driver/context.h` for that.
#include <dlfcn.h>

#include <string>

#include "driver/driver.h"
#include "driver/error.h"

namespace weft {

using namespace cu;

namespace {

constexpr int kMinVersion = 12000;  // CUDA 12.0, as cuDriverGetVersion returns it

// The form without edge data, for drivers before 12.3.
CUresult (*get_capture_info_v2)(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **,
                                std::size_t *);
CUresult get_capture_info_v3_from_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                     const CUgraphNode **dependencies, const CUgraphEdgeData **edges,
                                     std::size_t *count) {
  if (edges) *edges = nullptr;
  return get_capture_info_v2(stream, status, id, graph, dependencies, count);
}

// The form with edge data, for later drivers that lack the form without.
CUresult (*get_edges_v2)(CUgraph, CUgraphNode *, CUgraphNode *, CUgraphEdgeData *, std::size_t *);
CUresult get_edges_v1_from_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, std::size_t *count) {
  return get_edges_v2(graph, from, to, nullptr, count);
}

struct Loader {
  void *library;
  std::string missing;

  template <class Function>
  bool optional(Function &function, const char *symbol) {
    function = reinterpret_cast<Function>(dlsym(library, symbol));
    return function != nullptr;
  }
  template <class Function>
  void required(Function &function, const char *symbol) {
    if (!optional(function, symbol) && missing.empty()) missing = symbol;
  }
};

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

void resolve(Loader &load, Driver &d) {
  load.required(d.cuInit, "cuInit");
  load.required(d.cuDriverGetVersion, "cuDriverGetVersion");
  load.required(d.cuGetErrorName, "cuGetErrorName");
  load.required(d.cuGetErrorString, "cuGetErrorString");
  load.required(d.cuCtxSynchronize, "cuCtxSynchronize");
  load.required(d.cuCtxGetCurrent, "cuCtxGetCurrent");
  load.required(d.cuCtxSetCurrent, "cuCtxSetCurrent");
  load.required(d.cuDeviceGet, "cuDeviceGet");
  load.required(d.cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  load.required(d.cuStreamCreate, "cuStreamCreate");
  load.required(d.cuStreamCreateWithPriority, "cuStreamCreateWithPriority");
  load.required(d.cuStreamDestroy, "cuStreamDestroy_v2");
  load.required(d.cuStreamSynchronize, "cuStreamSynchronize");
  load.required(d.cuStreamQuery, "cuStreamQuery");
  load.required(d.cuStreamWaitEvent, "cuStreamWaitEvent");
  load.required(d.cuStreamBeginCapture, "cuStreamBeginCapture_v2");
  load.required(d.cuStreamEndCapture, "cuStreamEndCapture");
  load.required(d.cuStreamIsCapturing, "cuStreamIsCapturing");
  if (!load.optional(d.cuStreamGetCaptureInfo, "cuStreamGetCaptureInfo_v3")) {
    load.required(get_capture_info_v2, "cuStreamGetCaptureInfo_v2");
    d.cuStreamGetCaptureInfo = get_capture_info_v3_from_v2;
  }
  load.required(d.cuEventCreate, "cuEventCreate");
  load.required(d.cuEventDestroy, "cuEventDestroy_v2");
  load.required(d.cuEventRecord, "cuEventRecord");
  load.required(d.cuEventQuery, "cuEventQuery");
  load.required(d.cuEventSynchronize, "cuEventSynchronize");
  load.required(d.cuEventElapsedTime, "cuEventElapsedTime");
  load.required(d.cuLaunchHostFunc, "cuLaunchHostFunc");
  load.optional(d.cuLaunchHostFunc_v2, "cuLaunchHostFunc_v2");
  load.required(d.cuMemcpyAsync, "cuMemcpyAsync");
  load.optional(d.cuStreamWriteValue32, "cuStreamWriteValue32_v2");
  load.optional(d.cuStreamWaitValue32, "cuStreamWaitValue32_v2");
  load.optional(d.cuDeviceGetAttribute, "cuDeviceGetAttribute");
  load.optional(d.cuMemHostAlloc, "cuMemHostAlloc");
  load.optional(d.cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2");
  load.required(d.cuGraphInstantiate, "cuGraphInstantiateWithFlags");
  load.required(d.cuGraphLaunch, "cuGraphLaunch");
  load.required(d.cuGraphDestroy, "cuGraphDestroy");
  load.required(d.cuGraphExecDestroy, "cuGraphExecDestroy");
  load.required(d.cuGraphGetNodes, "cuGraphGetNodes");
  if (!load.optional(d.cuGraphGetEdges, "cuGraphGetEdges")) {
    load.required(get_edges_v2, "cuGraphGetEdges_v2");
    d.cuGraphGetEdges = get_edges_v1_from_v2;
  }
  load.required(d.cuGraphNodeGetType, "cuGraphNodeGetType");
  load.required(d.cuUserObjectCreate, "cuUserObjectCreate");
  load.required(d.cuUserObjectRelease, "cuUserObjectRelease");
  load.required(d.cuGraphRetainUserObject, "cuGraphRetainUserObject");
}

// Fills `d`. Returns "" or the reason why it failed.
std::string fill(Driver &d) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *why = dlerror();
    return std::string("libcuda.so.1 can't be loaded, so NVIDIA's driver is not installed (") + (why ? why : "") + ")";
  }
  Loader load{library, ""};
  int (*device_count)(int *) = nullptr;
  d.name = "cuda";
  resolve(load, d);
  load.required(device_count, "cuDeviceGetCount");
  if (d.cuDriverGetVersion) {
    int version = 0;
    if (d.cuDriverGetVersion(&version) == CUDA_SUCCESS && version > 0 && version < kMinVersion)
      return "the driver supports CUDA " + version_text(version) + "; weft needs a driver for CUDA " +
             version_text(kMinVersion) + " or later";
  }
  if (!load.missing.empty())
    return "libcuda.so.1 has no " + load.missing + "; weft needs a driver for CUDA " + version_text(kMinVersion) +
           " or later";
  const CUresult started = d.cuInit(0);
  if (started == CUDA_ERROR_STUB_LIBRARY) return "libcuda.so.1 is the toolkit's stub; NVIDIA's driver must come first";
  if (started == CUDA_ERROR_NO_DEVICE) return "there is no CUDA device (cuInit: CUDA_ERROR_NO_DEVICE)";
  if (started != CUDA_SUCCESS) {
    const char *name = nullptr;
    if (d.cuGetErrorName(started, &name) != CUDA_SUCCESS || !name) name = "an unknown error";
    return std::string("cuInit failed: ") + name + " (" + std::to_string(started) + ")";
  }
  int devices = 0;
  if (device_count(&devices) != CUDA_SUCCESS || devices == 0) return "there is no CUDA device";
  return "";
}

}  // namespace

const Driver *cuda_driver(const char **why) {
  struct Result {
    Driver driver{};
    std::string why;
  };
  // Never destroyed: callbacks late in the process's life still use it.
  static const Result *result = [] {
    auto *filled = new Result;
    filled->why = fill(filled->driver);
    return filled;
  }();
  if (result->why.empty()) return &result->driver;
  if (why) *why = result->why.c_str();
  return nullptr;
}

}  // namespace weft
