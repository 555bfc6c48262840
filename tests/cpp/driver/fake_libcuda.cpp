// A fake libcuda.so.1: the CPU driver under CUDA's symbol names, for testing symbol resolution without NVIDIA's driver.
// Macros select the variants: missing symbols, another version, a failing cuInit. As with CUDA, calls for streams,
// events and graphs need a current context on the thread.
#include <cstdlib>

#include "driver/driver.h"

#ifndef FAKE_VERSION
#define FAKE_VERSION 13000
#endif
#ifndef FAKE_INIT
#define FAKE_INIT 0
#endif
#ifndef FAKE_CAN_WAIT
#define FAKE_CAN_WAIT 1
#endif
#ifndef FAKE_DEVICES
#define FAKE_DEVICES 1
#endif

using namespace weft::cu;

static const Driver &d = weft::cpu_driver();
static thread_local CUcontext current = nullptr;
static char primary[2];  // the contexts of two devices; weft must retain each only once
static int retained[2];

#define EXPORT extern "C" __attribute__((visibility("default"))) CUresult

EXPORT cuInit(unsigned) { return static_cast<CUresult>(FAKE_INIT); }
EXPORT cuDriverGetVersion(int *version) {
  *version = FAKE_VERSION;
  return CUDA_SUCCESS;
}
EXPORT cuDeviceGetCount(int *count) {
  *count = FAKE_DEVICES;
  return CUDA_SUCCESS;
}
EXPORT cuGetErrorName(CUresult error, const char **text) { return d.cuGetErrorName(error, text); }
EXPORT cuGetErrorString(CUresult error, const char **text) { return d.cuGetErrorString(error, text); }
EXPORT cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal + 7;  // so that a device handle differs from its ordinal
  return ordinal < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
EXPORT cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  if (++retained[device - 7] > 1) return CUDA_ERROR_ILLEGAL_STATE;
  *context = reinterpret_cast<CUcontext>(&primary[device - 7]);
  return CUDA_SUCCESS;
}
EXPORT cuCtxGetCurrent(CUcontext *context) {
  *context = current;
  return CUDA_SUCCESS;
}
EXPORT cuCtxSetCurrent(CUcontext context) {
  current = context;
  return CUDA_SUCCESS;
}

EXPORT cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS ? FAKE_CAN_WAIT : 0;
  return CUDA_SUCCESS;
}

// The device address of page-locked memory differs from its host address by this much, so that mixing them up fails.
static constexpr CUdeviceptr distance = CUdeviceptr(1) << 60;

#define NEEDS_CONTEXT !current ? CUDA_ERROR_INVALID_CONTEXT:
EXPORT cuCtxSynchronize() { return NEEDS_CONTEXT d.cuCtxSynchronize(); }
EXPORT cuStreamCreate(CUstream *s, unsigned flags) { return NEEDS_CONTEXT d.cuStreamCreate(s, flags); }
EXPORT cuStreamCreateWithPriority(CUstream *s, unsigned flags, int priority) {
  return NEEDS_CONTEXT d.cuStreamCreateWithPriority(s, flags, priority);
}
EXPORT cuStreamDestroy_v2(CUstream s) { return NEEDS_CONTEXT d.cuStreamDestroy(s); }
EXPORT cuStreamSynchronize(CUstream s) { return NEEDS_CONTEXT d.cuStreamSynchronize(s); }
EXPORT cuStreamQuery(CUstream s) { return NEEDS_CONTEXT d.cuStreamQuery(s); }
EXPORT cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags) {
  return NEEDS_CONTEXT d.cuStreamWaitEvent(s, e, flags);
}
EXPORT cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode mode) {
  return NEEDS_CONTEXT d.cuStreamBeginCapture(s, mode);
}
#ifndef FAKE_NO_END_CAPTURE
EXPORT cuStreamEndCapture(CUstream s, CUgraph *graph) { return NEEDS_CONTEXT d.cuStreamEndCapture(s, graph); }
#endif
EXPORT cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status) {
  return NEEDS_CONTEXT d.cuStreamIsCapturing(s, status);
}
#ifdef FAKE_OTHER_FORMS
EXPORT cuStreamGetCaptureInfo_v2(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                 const CUgraphNode **dependencies, std::size_t *count) {
  return NEEDS_CONTEXT d.cuStreamGetCaptureInfo(s, status, id, graph, dependencies, nullptr, count);
}
EXPORT cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *, std::size_t *count) {
  return NEEDS_CONTEXT d.cuGraphGetEdges(graph, from, to, count);
}
#else
EXPORT cuStreamGetCaptureInfo_v3(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                 const CUgraphNode **dependencies, const CUgraphEdgeData **edges, std::size_t *count) {
  return NEEDS_CONTEXT d.cuStreamGetCaptureInfo(s, status, id, graph, dependencies, edges, count);
}
EXPORT cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, std::size_t *count) {
  return NEEDS_CONTEXT d.cuGraphGetEdges(graph, from, to, count);
}
#endif
EXPORT cuEventCreate(CUevent *e, unsigned flags) { return NEEDS_CONTEXT d.cuEventCreate(e, flags); }
EXPORT cuEventDestroy_v2(CUevent e) { return NEEDS_CONTEXT d.cuEventDestroy(e); }
EXPORT cuEventRecord(CUevent e, CUstream s) { return NEEDS_CONTEXT d.cuEventRecord(e, s); }
EXPORT cuEventQuery(CUevent e) { return NEEDS_CONTEXT d.cuEventQuery(e); }
EXPORT cuEventSynchronize(CUevent e) { return NEEDS_CONTEXT d.cuEventSynchronize(e); }
EXPORT cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
  return NEEDS_CONTEXT d.cuEventElapsedTime(ms, start, end);
}
EXPORT cuLaunchHostFunc(CUstream s, CUhostFn fn, void *data) { return NEEDS_CONTEXT d.cuLaunchHostFunc(s, fn, data); }
EXPORT cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, std::size_t bytes, CUstream s) {
  return NEEDS_CONTEXT d.cuMemcpyAsync(dst, src, bytes, s);
}
EXPORT cuMemHostAlloc(void **pointer, std::size_t bytes, unsigned flags) {
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  *pointer = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return flags == (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
EXPORT cuMemHostGetDevicePointer_v2(CUdeviceptr *pointer, void *host, unsigned) {
  *pointer = reinterpret_cast<CUdeviceptr>(host) + distance;
  return NEEDS_CONTEXT CUDA_SUCCESS;
}
#ifndef FAKE_NO_VALUES
EXPORT cuStreamWriteValue32_v2(CUstream s, CUdeviceptr at, cuuint32_t value, unsigned flags) {
  return NEEDS_CONTEXT d.cuStreamWriteValue32(s, at - distance, value, flags);
}
EXPORT cuStreamWaitValue32_v2(CUstream s, CUdeviceptr at, cuuint32_t value, unsigned flags) {
  return NEEDS_CONTEXT d.cuStreamWaitValue32(s, at - distance, value, flags);
}
#endif
EXPORT cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
  return NEEDS_CONTEXT d.cuGraphInstantiate(exec, graph, flags);
}
EXPORT cuGraphLaunch(CUgraphExec exec, CUstream s) { return NEEDS_CONTEXT d.cuGraphLaunch(exec, s); }
EXPORT cuGraphDestroy(CUgraph graph) { return NEEDS_CONTEXT d.cuGraphDestroy(graph); }
EXPORT cuGraphExecDestroy(CUgraphExec exec) { return NEEDS_CONTEXT d.cuGraphExecDestroy(exec); }
EXPORT cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, std::size_t *count) {
  return NEEDS_CONTEXT d.cuGraphGetNodes(graph, nodes, count);
}
EXPORT cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
  return NEEDS_CONTEXT d.cuGraphNodeGetType(node, type);
}
EXPORT cuUserObjectCreate(CUuserObject *object, void *pointer, CUhostFn destroy, unsigned count, unsigned flags) {
  return NEEDS_CONTEXT d.cuUserObjectCreate(object, pointer, destroy, count, flags);
}
EXPORT cuUserObjectRelease(CUuserObject object, unsigned count) {
  return NEEDS_CONTEXT d.cuUserObjectRelease(object, count);
}
EXPORT cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  return NEEDS_CONTEXT d.cuGraphRetainUserObject(graph, object, count, flags);
}
