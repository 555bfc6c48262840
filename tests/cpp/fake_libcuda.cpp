// A libcuda.so.1 that is the CPU driver under CUDA's symbol names, so that what resolves them can be tested without
// NVIDIA's driver. Each variant is compiled with what it lacks or answers.
#include "driver.h"

#ifndef FAKE_VERSION
#define FAKE_VERSION 13000
#endif
#ifndef FAKE_INIT
#define FAKE_INIT 0
#endif
#ifndef FAKE_DEVICES
#define FAKE_DEVICES 1
#endif

using namespace weft::cu;

static const Driver &d = weft::cpu_driver();

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
EXPORT cuCtxSynchronize() { return d.cuCtxSynchronize(); }
EXPORT cuStreamCreate(CUstream *s, unsigned flags) { return d.cuStreamCreate(s, flags); }
EXPORT cuStreamDestroy_v2(CUstream s) { return d.cuStreamDestroy(s); }
EXPORT cuStreamSynchronize(CUstream s) { return d.cuStreamSynchronize(s); }
EXPORT cuStreamQuery(CUstream s) { return d.cuStreamQuery(s); }
EXPORT cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags) { return d.cuStreamWaitEvent(s, e, flags); }
EXPORT cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode mode) { return d.cuStreamBeginCapture(s, mode); }
#ifndef FAKE_NO_END_CAPTURE
EXPORT cuStreamEndCapture(CUstream s, CUgraph *graph) { return d.cuStreamEndCapture(s, graph); }
#endif
EXPORT cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status) { return d.cuStreamIsCapturing(s, status); }
#ifdef FAKE_OTHER_FORMS
EXPORT cuStreamGetCaptureInfo_v2(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                 const CUgraphNode **dependencies, std::size_t *count) {
  return d.cuStreamGetCaptureInfo(s, status, id, graph, dependencies, nullptr, count);
}
EXPORT cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *, std::size_t *count) {
  return d.cuGraphGetEdges(graph, from, to, count);
}
#else
EXPORT cuStreamGetCaptureInfo_v3(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                 const CUgraphNode **dependencies, const CUgraphEdgeData **edges, std::size_t *count) {
  return d.cuStreamGetCaptureInfo(s, status, id, graph, dependencies, edges, count);
}
EXPORT cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, std::size_t *count) {
  return d.cuGraphGetEdges(graph, from, to, count);
}
#endif
EXPORT cuEventCreate(CUevent *e, unsigned flags) { return d.cuEventCreate(e, flags); }
EXPORT cuEventDestroy_v2(CUevent e) { return d.cuEventDestroy(e); }
EXPORT cuEventRecord(CUevent e, CUstream s) { return d.cuEventRecord(e, s); }
EXPORT cuEventQuery(CUevent e) { return d.cuEventQuery(e); }
EXPORT cuEventSynchronize(CUevent e) { return d.cuEventSynchronize(e); }
EXPORT cuEventElapsedTime(float *ms, CUevent start, CUevent end) { return d.cuEventElapsedTime(ms, start, end); }
EXPORT cuLaunchHostFunc(CUstream s, CUhostFn fn, void *data) { return d.cuLaunchHostFunc(s, fn, data); }
EXPORT cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, std::size_t bytes, CUstream s) {
  return d.cuMemcpyAsync(dst, src, bytes, s);
}
EXPORT cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
  return d.cuGraphInstantiate(exec, graph, flags);
}
EXPORT cuGraphLaunch(CUgraphExec exec, CUstream s) { return d.cuGraphLaunch(exec, s); }
EXPORT cuGraphDestroy(CUgraph graph) { return d.cuGraphDestroy(graph); }
EXPORT cuGraphExecDestroy(CUgraphExec exec) { return d.cuGraphExecDestroy(exec); }
EXPORT cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, std::size_t *count) {
  return d.cuGraphGetNodes(graph, nodes, count);
}
EXPORT cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) { return d.cuGraphNodeGetType(node, type); }
EXPORT cuUserObjectCreate(CUuserObject *object, void *pointer, CUhostFn destroy, unsigned count, unsigned flags) {
  return d.cuUserObjectCreate(object, pointer, destroy, count, flags);
}
EXPORT cuUserObjectRelease(CUuserObject object, unsigned count) { return d.cuUserObjectRelease(object, count); }
EXPORT cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  return d.cuGraphRetainUserObject(graph, object, count, flags);
}
