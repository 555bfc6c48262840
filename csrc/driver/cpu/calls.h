// The CPU driver's calls. The caller holds the driver's lock; `driver/cpu/cpu.cpp` takes it and fills the table.
// Internal to this folder.
#pragma once

#include <algorithm>

#include "driver/cpu/state.h"

namespace weft::cpu {

using cu::CUresult;

// Looks up the stream of a handle; handles 0 and 1 mean the default stream. Returns CUDA_ERROR_INVALID_HANDLE for an
// unknown handle. Returns CUDA_ERROR_STREAM_CAPTURE_IMPLICIT if the default stream would have to wait for a stream in
// capture; this also invalidates the capture if the call `uses` the stream.
CUresult find_stream(State &s, cu::CUstream handle, std::shared_ptr<Stream> &stream, bool uses = true);

// Capture rules. `unsafe_call` is for a call that CUDA forbids while this thread captures (except in relaxed
// mode), or while any thread captures in global mode. It then invalidates the capture and returns an error.
CUresult unsafe_call(State &s);
CUresult default_stream_in_capture(State &s, bool invalidate);
CUresult refuse_in_capture(Stream &stream, CUresult code);  // invalidates the stream's capture
CUresult capture_work(State &s, Stream &stream, const Work &work);
CUresult capture_wait(State &s, Stream &stream, Event &event);

CUresult context_synchronize(State &s, Lock &lock);
CUresult stream_create(State &s, Lock &, cu::CUstream *out, unsigned flags);
CUresult stream_create_with_priority(State &s, Lock &, cu::CUstream *out, unsigned flags, int priority);
CUresult stream_destroy(State &s, Lock &, cu::CUstream handle);
CUresult stream_synchronize(State &s, Lock &lock, cu::CUstream handle);
CUresult stream_query(State &s, Lock &lock, cu::CUstream handle);
CUresult stream_wait_event(State &s, Lock &lock, cu::CUstream handle, cu::CUevent event, unsigned flags);

CUresult stream_begin_capture(State &s, Lock &, cu::CUstream handle, cu::CUstreamCaptureMode mode);
CUresult stream_end_capture(State &s, Lock &, cu::CUstream handle, cu::CUgraph *graph);
CUresult stream_is_capturing(State &s, Lock &lock, cu::CUstream handle, cu::CUstreamCaptureStatus *status);
CUresult stream_capture_info(State &s, Lock &, cu::CUstream handle, cu::CUstreamCaptureStatus *status,
                             cu::cuuint64_t *id, cu::CUgraph *graph, const cu::CUgraphNode **dependencies,
                             const cu::CUgraphEdgeData **edges, std::size_t *count);

CUresult event_create(State &s, Lock &, cu::CUevent *out, unsigned flags);
CUresult event_destroy(State &s, Lock &, cu::CUevent event);
CUresult event_record(State &s, Lock &lock, cu::CUevent handle, cu::CUstream stream);
CUresult event_query(State &s, Lock &lock, cu::CUevent handle);
CUresult event_synchronize(State &s, Lock &lock, cu::CUevent handle);
CUresult event_elapsed_time(State &s, Lock &, float *milliseconds, cu::CUevent start, cu::CUevent end);

CUresult launch_host_func(State &s, Lock &lock, cu::CUstream stream, cu::CUhostFn fn, void *data);
CUresult launch_kernel(State &s, Lock &lock, cu::CUstream stream, cu::CUhostFn fn, void *data);
CUresult memcpy_async(State &s, Lock &lock, cu::CUdeviceptr dst, cu::CUdeviceptr src, std::size_t bytes,
                      cu::CUstream stream);
CUresult stream_write_value(State &s, Lock &lock, cu::CUstream stream, cu::CUdeviceptr address, cu::cuuint32_t value,
                            unsigned flags);
CUresult stream_wait_value(State &s, Lock &lock, cu::CUstream stream, cu::CUdeviceptr address, cu::cuuint32_t value,
                           unsigned flags);
CUresult submit(State &s, Lock &lock, cu::CUstream stream, Work work);  // any node

CUresult graph_instantiate(State &s, Lock &, cu::CUgraphExec *out, cu::CUgraph graph, unsigned long long flags);
CUresult graph_launch(State &s, Lock &lock, cu::CUgraphExec exec, cu::CUstream stream);
CUresult graph_destroy(State &s, Lock &, cu::CUgraph graph);
CUresult graph_exec_destroy(State &s, Lock &, cu::CUgraphExec exec);
CUresult graph_get_nodes(State &s, Lock &, cu::CUgraph graph, cu::CUgraphNode *nodes, std::size_t *count);
CUresult graph_get_edges(State &s, Lock &, cu::CUgraph graph, cu::CUgraphNode *from, cu::CUgraphNode *to,
                         std::size_t *count);
CUresult graph_node_get_type(State &s, Lock &, cu::CUgraphNode node, cu::CUgraphNodeType *type);

CUresult user_object_create(State &s, Lock &, cu::CUuserObject *out, void *pointer, cu::CUhostFn destroy,
                            unsigned count, unsigned flags);
CUresult user_object_release(State &s, Lock &, cu::CUuserObject object, unsigned count);
CUresult graph_retain_user_object(State &s, Lock &, cu::CUgraph graph, cu::CUuserObject object, unsigned count,
                                  unsigned flags);

// Returns the object of a handle, or null for an unknown or destroyed one.
template <class T>
std::shared_ptr<T> find(const Registry<T> &registry, T *handle) {
  auto entry = registry.find(handle);
  return entry == registry.end() ? nullptr : entry->second;
}

}  // namespace weft::cpu
