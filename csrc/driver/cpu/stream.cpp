// Streams, events, and launches.
#include "driver/cpu/calls.h"

namespace weft::cpu {

using namespace cu;

namespace {

// Checks that the event may be queried or waited for here. Sets `stream` and `point` to the place of its last record,
// or `stream` to null if there is nothing to wait for.
CUresult event_point(State &s, CUevent handle, std::shared_ptr<Stream> &stream, std::uint64_t &point) {
  const std::shared_ptr<Event> event = find(s.events, handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture) {
    event->capture->invalid = true;
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  if (CUresult r = unsafe_call(s)) return r;
  stream = event->stream;
  point = event->point;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult submit(State &s, Lock &lock, CUstream handle, Work work) {
  work.label = take_label();
  std::shared_ptr<Stream> stream;
  if (CUresult r = find_stream(s, handle, stream)) return r;
  work.stream_number = stream->number;
  if (stream->capture) return capture_work(s, *stream, work);
  enqueue(s, lock, *stream, {Op::kNode, work, nullptr, 0, nullptr, nullptr});
  return CUDA_SUCCESS;
}

CUresult find_stream(State &s, CUstream handle, std::shared_ptr<Stream> &stream, bool uses) {
  if (reinterpret_cast<std::uintptr_t>(handle) <= 1) {
    stream = s.legacy;
    return default_stream_in_capture(s, uses);
  }
  stream = find(s.streams, handle);
  return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult stream_create(State &s, Lock &, CUstream *out, unsigned flags) {
  if (!out || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  auto stream = std::make_shared<Stream>();
  stream->number = ++s.stream_numbers;
  stream->non_blocking = flags == CU_STREAM_NON_BLOCKING;
  s.living.push_back(stream);
  s.streams.emplace(stream.get(), stream);
  *out = stream.get();
  return CUDA_SUCCESS;
}

// The priority has no effect: all threads are scheduled alike.
CUresult stream_create_with_priority(State &s, Lock &lock, CUstream *out, unsigned flags, int) {
  return stream_create(s, lock, out, flags);
}

CUresult stream_destroy(State &s, Lock &, CUstream handle) {
  const std::shared_ptr<Stream> stream = find(s.streams, handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) return refuse_in_capture(*stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  s.streams.erase(handle);
  destroy_stream(s, *stream);
  return CUDA_SUCCESS;
}

CUresult stream_synchronize(State &s, Lock &lock, CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (CUresult r = find_stream(s, handle, stream)) return r;
  if (stream->capture) return refuse_in_capture(*stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  if (stream == s.legacy) order_with_default_stream(s, *stream);
  wait_for_point(s, lock, stream, stream->enqueued);
  return CUDA_SUCCESS;
}

CUresult stream_query(State &s, Lock &lock, CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (CUresult r = find_stream(s, handle, stream)) return r;
  if (stream->capture) return refuse_in_capture(*stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  if (stream == s.legacy) order_with_default_stream(s, *stream);
  const std::uint64_t point = stream->enqueued;
  poke(s, lock, stream, point);
  return stream->completed >= point ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult stream_wait_event(State &s, Lock &lock, CUstream handle, CUevent event_handle, unsigned) {
  std::shared_ptr<Stream> stream;
  if (CUresult r = find_stream(s, handle, stream)) return r;
  const std::shared_ptr<Event> event = find(s.events, event_handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture || event->capture) return capture_wait(s, *stream, *event);
  if (!event->stream || event->stream == stream || event->stream->completed >= event->point) return CUDA_SUCCESS;
  enqueue(s, lock, *stream, {Op::kWait, {}, event->stream, event->point, nullptr, nullptr});
  return CUDA_SUCCESS;
}

CUresult context_synchronize(State &s, Lock &lock) {
  if (!s.captures.empty()) {
    for (const auto &capture : s.captures) capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  wait_for_all(s, lock);
  return CUDA_SUCCESS;
}

CUresult event_create(State &s, Lock &, CUevent *out, unsigned flags) {
  if (!out || flags > (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_VALUE;
  auto event = std::make_shared<Event>();
  event->flags = flags;
  s.events.emplace(event.get(), event);
  *out = event.get();
  return CUDA_SUCCESS;
}

CUresult event_destroy(State &s, Lock &, CUevent event) {
  return s.events.erase(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult event_record(State &s, Lock &lock, CUevent handle, CUstream stream_handle) {
  std::shared_ptr<Stream> stream;
  if (CUresult r = find_stream(s, stream_handle, stream)) return r;
  const std::shared_ptr<Event> event = find(s.events, handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture && stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  event->capture = stream->capture;
  event->dependencies = stream->dependencies;
  event->stream.reset();
  event->timed = false;
  ++event->records;
  if (stream->capture) return CUDA_SUCCESS;
  event->stream = stream;
  enqueue(s, lock, *stream, {Op::kRecord, {}, nullptr, event->records, event, nullptr});
  return CUDA_SUCCESS;
}

CUresult event_query(State &s, Lock &lock, CUevent handle) {
  std::shared_ptr<Stream> stream;
  std::uint64_t point = 0;
  if (CUresult r = event_point(s, handle, stream, point)) return r;
  if (!stream) return CUDA_SUCCESS;
  poke(s, lock, stream, point);
  return stream->completed >= point ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult event_synchronize(State &s, Lock &lock, CUevent handle) {
  std::shared_ptr<Stream> stream;
  std::uint64_t point = 0;
  if (CUresult r = event_point(s, handle, stream, point)) return r;
  if (stream) wait_for_point(s, lock, stream, point);
  return CUDA_SUCCESS;
}

CUresult event_elapsed_time(State &s, Lock &, float *milliseconds, CUevent start_handle, CUevent end_handle) {
  if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Event> events[] = {find(s.events, start_handle), find(s.events, end_handle)};
  for (const auto &event : events) {
    if (!event || (event->flags & CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    if (!event->stream) return CUDA_ERROR_INVALID_HANDLE;
  }
  for (const auto &event : events)
    if (event->stream->completed < event->point) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(events[1]->time_ns - events[0]->time_ns) * 1e-6f;
  return CUDA_SUCCESS;
}

CUresult launch_host_func(State &s, Lock &lock, CUstream stream, CUhostFn fn, void *data) {
  if (!fn) return CUDA_ERROR_INVALID_VALUE;
  Work work;
  work.kind = CU_GRAPH_NODE_TYPE_HOST;
  work.fn = fn;
  work.data = data;
  return submit(s, lock, stream, work);
}

CUresult launch_kernel(State &s, Lock &lock, CUstream stream, CUhostFn fn, void *data) {
  if (!fn) return CUDA_ERROR_INVALID_VALUE;
  Work work;
  work.kind = CU_GRAPH_NODE_TYPE_KERNEL;
  work.fn = fn;
  work.data = data;
  return submit(s, lock, stream, work);
}

CUresult memcpy_async(State &s, Lock &lock, CUdeviceptr dst, CUdeviceptr src, std::size_t bytes, CUstream stream) {
  if (bytes > 0 && (!dst || !src)) return CUDA_ERROR_INVALID_VALUE;
  Work work;
  work.kind = CU_GRAPH_NODE_TYPE_MEMCPY;
  work.dst = reinterpret_cast<void *>(dst);
  work.src = reinterpret_cast<const void *>(src);
  work.bytes = bytes;
  return submit(s, lock, stream, work);
}

}  // namespace weft::cpu
