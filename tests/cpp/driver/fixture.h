// Helpers for tests that use streams, events and graphs.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "check.h"

namespace weft::test {

using namespace weft::cu;

inline const Driver &d = cpu_driver();

inline CUstream new_stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
  CUstream stream = nullptr;
  CHECK_OK(d.cuStreamCreate(&stream, flags));
  return stream;
}
inline CUevent new_event(unsigned flags = CU_EVENT_DISABLE_TIMING) {
  CUevent event = nullptr;
  CHECK_OK(d.cuEventCreate(&event, flags));
  return event;
}

// Three streams and an event, destroyed at the end.
struct Streams {
  CUstream a = new_stream(), b = new_stream(), c = new_stream();
  CUevent event = new_event();
  ~Streams() {
    for (CUstream stream : {a, b, c}) CHECK_OK(d.cuStreamDestroy(stream));
    CHECK_OK(d.cuEventDestroy(event));
    CHECK_OK(d.cuCtxSynchronize());
  }
  // Makes later work on `to` wait for the current work of `from`.
  void order(CUstream from, CUstream to) {
    CHECK_OK(d.cuEventRecord(event, from));
    CHECK_OK(d.cuStreamWaitEvent(to, event, 0));
  }
  void begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) {
    CHECK_OK(d.cuStreamBeginCapture(a, mode));
  }
  CUgraph end() {
    CUgraph graph = nullptr;
    CHECK_OK(d.cuStreamEndCapture(a, &graph));
    CHECK(graph != nullptr);
    return graph;
  }
  // Ends a capture, which must fail with `code`, and checks that no graph results and no stream is still in capture.
  void end_fails(CUresult code) {
    CUgraph graph = reinterpret_cast<CUgraph>(1);
    CHECK(d.cuStreamEndCapture(a, &graph) == code);
    CHECK(graph == nullptr);
    for (CUstream stream : {a, b, c}) CHECK(status(stream) == CU_STREAM_CAPTURE_STATUS_NONE);
  }
  static CUstreamCaptureStatus status(CUstream stream) {
    CUstreamCaptureStatus out = CU_STREAM_CAPTURE_STATUS_NONE;
    CHECK_OK(d.cuStreamIsCapturing(stream, &out));
    return out;
  }
};

inline CUgraphExec instantiate(CUgraph graph) {
  CUgraphExec exec = nullptr;
  CHECK_OK(d.cuGraphInstantiate(&exec, graph, 0));
  CHECK_OK(d.cuGraphDestroy(graph));
  return exec;
}

// Appends a number to a list. The list has no lock: with correct ordering only one node touches it at a time.
struct Append {
  std::vector<int> *list;
  int value;
};
inline void append(void *data) {
  auto *task = static_cast<Append *>(data);
  task->list->push_back(task->value);
}

inline void add_one(void *counter) { static_cast<std::atomic<int> *>(counter)->fetch_add(1); }

inline void nap(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

inline CUdeviceptr address(const void *pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace weft::test
