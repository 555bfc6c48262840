// The CUDA driver calls that weft uses, as a table of functions with CUDA's names and rules.
//
// All code that launches callbacks, owns their data or captures graphs goes through a `Driver`, never through a CUDA
// library. `driver/cuda.cpp` fills the table from libcuda.so.1 at run time; `driver/cpu/` implements the calls on
// threads. The declarations are weft's own, so that it builds without CUDA; a test compares constants and struct
// sizes with NVIDIA's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::cu {

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using cuuint32_t = std::uint32_t;
using cuuint64_t = std::uint64_t;
using CUcontext = struct CUctx_st *;
using CUstream = struct CUstream_st *;
using CUevent = struct CUevent_st *;
using CUgraph = struct CUgraph_st *;
using CUgraphNode = struct CUgraphNode_st *;
using CUgraphExec = struct CUgraphExec_st *;
using CUuserObject = struct CUuserObject_st *;
using CUhostFn = void (*)(void *user_data);

enum CUresult : int {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_STUB_LIBRARY = 34,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_ILLEGAL_STATE = 401,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
  CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
  CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
  CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_CAPTURED_EVENT = 907,
  CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
  CUDA_ERROR_UNKNOWN = 999,
};

enum CUstreamCaptureStatus : int {
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
  CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
};

enum CUstreamCaptureMode : int {
  CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

enum CUgraphNodeType : int {
  CU_GRAPH_NODE_TYPE_KERNEL = 0,
  CU_GRAPH_NODE_TYPE_MEMCPY = 1,
  CU_GRAPH_NODE_TYPE_MEMSET = 2,
  CU_GRAPH_NODE_TYPE_HOST = 3,
  CU_GRAPH_NODE_TYPE_GRAPH = 4,
  CU_GRAPH_NODE_TYPE_EMPTY = 5,
  CU_GRAPH_NODE_TYPE_WAIT_EVENT = 6,
  CU_GRAPH_NODE_TYPE_EVENT_RECORD = 7,
  CU_GRAPH_NODE_TYPE_BATCH_MEM_OP = 12,
};

enum CUdevice_attribute : int {
  CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = 122,
};

inline constexpr unsigned CU_STREAM_DEFAULT = 0, CU_STREAM_NON_BLOCKING = 1;
inline constexpr unsigned CU_EVENT_DEFAULT = 0, CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2;
inline constexpr unsigned CU_USER_OBJECT_NO_DESTRUCTOR_SYNC = 1, CU_GRAPH_USER_OBJECT_MOVE = 1;
inline constexpr unsigned CU_STREAM_WRITE_VALUE_DEFAULT = 0;
inline constexpr unsigned CU_STREAM_WAIT_VALUE_GEQ = 0, CU_STREAM_WAIT_VALUE_EQ = 1, CU_STREAM_WAIT_VALUE_AND = 2,
                          CU_STREAM_WAIT_VALUE_NOR = 3;
inline constexpr unsigned CU_MEMHOSTALLOC_PORTABLE = 1, CU_MEMHOSTALLOC_DEVICEMAP = 2;

// CUgraphEdgeData of CUDA 12.3 and later. Only its size matters: weft always passes a null pointer.
struct CUgraphEdgeData {
  unsigned char from_port, to_port, type, reserved[5];
};
static_assert(sizeof(CUgraphEdgeData) == 8, "as CUDA declares it");

// One entry per call. An entry marked optional is null if the driver lacks the call.
struct Driver {
  const char *name;  // "cpu" or "cuda"

  CUresult (*cuInit)(unsigned flags);
  CUresult (*cuDriverGetVersion)(int *version);
  CUresult (*cuGetErrorName)(CUresult error, const char **text);
  CUresult (*cuGetErrorString)(CUresult error, const char **text);
  CUresult (*cuCtxSynchronize)();
  // Contexts, optional: the CPU has none.
  CUresult (*cuCtxGetCurrent)(CUcontext *context);
  CUresult (*cuCtxSetCurrent)(CUcontext context);
  CUresult (*cuDeviceGet)(CUdevice *device, int ordinal);
  CUresult (*cuDevicePrimaryCtxRetain)(CUcontext *context, CUdevice device);

  CUresult (*cuStreamCreate)(CUstream *stream, unsigned flags);
  // A lower `priority` runs sooner; 0 is the default, and values out of range are clamped.
  CUresult (*cuStreamCreateWithPriority)(CUstream *stream, unsigned flags, int priority);
  CUresult (*cuStreamDestroy)(CUstream stream);
  CUresult (*cuStreamSynchronize)(CUstream stream);
  CUresult (*cuStreamQuery)(CUstream stream);
  CUresult (*cuStreamWaitEvent)(CUstream stream, CUevent event, unsigned flags);

  CUresult (*cuStreamBeginCapture)(CUstream stream, CUstreamCaptureMode mode);
  CUresult (*cuStreamEndCapture)(CUstream stream, CUgraph *graph);
  CUresult (*cuStreamIsCapturing)(CUstream stream, CUstreamCaptureStatus *status);
  // The v3 form: id, graph, dependencies and edges may be null.
  CUresult (*cuStreamGetCaptureInfo)(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                     const CUgraphNode **dependencies, const CUgraphEdgeData **edges,
                                     std::size_t *count);

  CUresult (*cuEventCreate)(CUevent *event, unsigned flags);
  CUresult (*cuEventDestroy)(CUevent event);
  CUresult (*cuEventRecord)(CUevent event, CUstream stream);
  CUresult (*cuEventQuery)(CUevent event);
  CUresult (*cuEventSynchronize)(CUevent event);
  CUresult (*cuEventElapsedTime)(float *milliseconds, CUevent start, CUevent end);

  CUresult (*cuLaunchHostFunc)(CUstream stream, CUhostFn fn, void *user_data);
  CUresult (*cuLaunchHostFunc_v2)(CUstream stream, CUhostFn fn, void *user_data,
                                  unsigned sync_mode);  // optional, CUDA >= 13.2
  CUresult (*cuMemcpyAsync)(CUdeviceptr dst, CUdeviceptr src, std::size_t bytes, CUstream stream);

  // Stream memory operations (v2), optional. The memory is the device's, or page-locked and mapped.
  CUresult (*cuStreamWriteValue32)(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);
  CUresult (*cuStreamWaitValue32)(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);
  // Calls that CUDA needs for memory operations, optional: the CPU driver can use any memory.
  CUresult (*cuDeviceGetAttribute)(int *value, CUdevice_attribute attribute, CUdevice device);
  CUresult (*cuMemHostAlloc)(void **pointer, std::size_t bytes, unsigned flags);
  CUresult (*cuMemHostGetDevicePointer)(CUdeviceptr *pointer, void *host, unsigned flags);

  CUresult (*cuGraphInstantiate)(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
  CUresult (*cuGraphLaunch)(CUgraphExec exec, CUstream stream);
  CUresult (*cuGraphDestroy)(CUgraph graph);
  CUresult (*cuGraphExecDestroy)(CUgraphExec exec);
  CUresult (*cuGraphGetNodes)(CUgraph graph, CUgraphNode *nodes, std::size_t *count);
  // The v1 form, without edge data.
  CUresult (*cuGraphGetEdges)(CUgraph graph, CUgraphNode *from, CUgraphNode *to, std::size_t *count);
  CUresult (*cuGraphNodeGetType)(CUgraphNode node, CUgraphNodeType *type);

  CUresult (*cuUserObjectCreate)(CUuserObject *object, void *pointer, CUhostFn destroy, unsigned count, unsigned flags);
  CUresult (*cuUserObjectRelease)(CUuserObject object, unsigned count);
  CUresult (*cuGraphRetainUserObject)(CUgraph graph, CUuserObject object, unsigned count, unsigned flags);
};

}  // namespace weft::cu

namespace weft {

// The CPU's table, which always exists.
const cu::Driver &cpu_driver();

// CUDA's table, resolved once from libcuda.so.1 and initialised. Null if there is no usable driver or GPU; `*why` (if
// given) is then set to a static text with the reason.
const cu::Driver *cuda_driver(const char **why = nullptr);

}  // namespace weft
