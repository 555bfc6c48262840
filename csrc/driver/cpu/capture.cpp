// Stream capture: recording, refused calls, and invalidation.
#include <algorithm>

#include "driver/cpu/calls.h"

namespace weft::cpu {

using namespace cu;

namespace {

void add_dependencies(std::vector<CUgraphNode> &into, const std::vector<CUgraphNode> &nodes) {
  for (CUgraphNode node : nodes)
    if (std::find(into.begin(), into.end(), node) == into.end()) into.push_back(node);
}

void join(Capture &capture, const std::shared_ptr<Capture> &shared, Stream &stream) {
  stream.capture = shared;
  stream.dependencies.clear();
  capture.streams.push_back(&stream);
}

// Whether every captured node leads to the origin stream's dependencies, which is required to end a capture.
bool all_joined(const Capture &capture) {
  std::vector<char> reached(capture.graph->nodes.size(), 0);
  std::vector<CUgraphNode> todo = capture.origin->dependencies;
  while (!todo.empty()) {
    const CUgraphNode node = todo.back();
    todo.pop_back();
    if (reached[node->index]) continue;
    reached[node->index] = 1;
    todo.insert(todo.end(), node->dependencies.begin(), node->dependencies.end());
  }
  return std::find(reached.begin(), reached.end(), 0) == reached.end();
}

// Ends the capture: it is no longer active, and its streams leave it.
void leave(State &s, const std::shared_ptr<Capture> &capture) {
  capture->active = false;
  for (Stream *stream : capture->streams) {
    stream->capture.reset();
    stream->dependencies.clear();
  }
  capture->streams.clear();
  s.captures.erase(std::find(s.captures.begin(), s.captures.end(), capture));
}

}  // namespace

CUresult refuse_in_capture(Stream &stream, CUresult code) {
  if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  stream.capture->invalid = true;
  return code;
}

CUresult default_stream_in_capture(State &s, bool invalidate) {
  CUresult result = CUDA_SUCCESS;
  for (const auto &capture : s.captures) {
    const auto blocking = [](const Stream *stream) { return !stream->non_blocking; };
    if (std::none_of(capture->streams.begin(), capture->streams.end(), blocking)) continue;
    capture->invalid |= invalidate;
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return result;
}

CUresult unsafe_call(State &s) {
  CUresult result = CUDA_SUCCESS;
  for (const auto &capture : s.captures) {
    const bool here = capture->thread == std::this_thread::get_id();
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED || (!here && capture->mode != CU_STREAM_CAPTURE_MODE_GLOBAL))
      continue;
    capture->invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult capture_work(State &s, Stream &stream, const Work &work) {
  Capture &capture = *stream.capture;
  if (capture.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  auto &nodes = capture.graph->nodes;
  nodes.push_back(std::make_unique<CUgraphNode_st>(CUgraphNode_st{work, nodes.size(), stream.dependencies}));
  s.nodes.insert(nodes.back().get());
  stream.dependencies = {nodes.back().get()};
  return CUDA_SUCCESS;
}

CUresult capture_wait(State &s, Stream &stream, Event &event) {
  const std::shared_ptr<Capture> capture = event.capture;
  if (stream.capture) {
    if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!capture || !capture->active) return refuse_in_capture(stream, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    // Two captures cannot be merged; both become invalid.
    if (capture != stream.capture) {
      capture->invalid = true;
      return refuse_in_capture(stream, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
  } else {
    if (!capture->active) return CUDA_ERROR_CAPTURED_EVENT;
    if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (&stream == s.legacy.get()) {
      capture->invalid = true;
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    join(*capture, capture, stream);
  }
  add_dependencies(stream.dependencies, event.dependencies);
  return CUDA_SUCCESS;
}

CUresult stream_begin_capture(State &s, Lock &, CUstream handle, CUstreamCaptureMode mode) {
  std::shared_ptr<Stream> stream;
  if (CUresult r = find_stream(s, handle, stream)) return r;
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  if (stream == s.legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->id = ++s.capture_ids;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream.get();
  capture->graph = std::make_shared<Graph>();
  capture->graph->capturing = true;
  s.graphs.emplace(capture->graph.get(), capture->graph);
  s.captures.push_back(capture);
  join(*capture, capture, *stream);
  return CUDA_SUCCESS;
}

CUresult stream_end_capture(State &s, Lock &, CUstream handle, CUgraph *graph) {
  std::shared_ptr<Stream> stream;
  if (CUresult r = find_stream(s, handle, stream)) return r;
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream.get()) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  const CUresult result = capture->invalid        ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                          : !all_joined(*capture) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                                  : CUDA_SUCCESS;
  leave(s, capture);
  capture->graph->capturing = false;
  if (result == CUDA_SUCCESS)
    *graph = capture->graph.get();
  else
    s.graphs.erase(capture->graph.get());
  capture->graph.reset();
  return result;
}

CUresult stream_capture_info(State &s, Lock &, CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                             CUgraph *graph, const CUgraphNode **dependencies, const CUgraphEdgeData **edges,
                             std::size_t *count) {
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  if (CUresult r = find_stream(s, handle, stream, false)) return r;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  const Capture *capture = stream->capture.get();
  if (!capture) return CUDA_SUCCESS;
  *status = capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (capture->invalid) return CUDA_SUCCESS;
  if (id) *id = capture->id;
  if (graph) *graph = capture->graph.get();
  if (dependencies) *dependencies = stream->dependencies.data();
  if (edges) *edges = nullptr;
  if (count) *count = stream->dependencies.size();
  return CUDA_SUCCESS;
}

CUresult stream_is_capturing(State &s, Lock &lock, CUstream handle, CUstreamCaptureStatus *status) {
  return stream_capture_info(s, lock, handle, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

}  // namespace weft::cpu
