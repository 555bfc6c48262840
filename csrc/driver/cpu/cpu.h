// What the CPU driver offers beyond CUDA's calls: device work, schedules, traces. Python-free.
//
// Where CUDA leaves a choice or says little, this driver does so:
// - Host functions run one at a time, as on one host-function thread; destructors of user objects run on an internal
//   thread, and cuCtxSynchronize waits for those that are due.
// - cuGraphLaunch into a captured stream is CUDA_ERROR_NOT_SUPPORTED and invalidates the capture: no child graphs.
// - A captured stream can't be destroyed (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); the capture must be ended first.
// - A query runs what is ready, at most to the point that it asks about (schedule kInline).
// - A word that a stream waits for (cuStreamWaitValue32) may be anywhere. Whoever waits for the device looks at it now
//   and then, or at once when `values_changed` says so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "driver/driver.h"

namespace weft::cpu {

enum class Schedule {
  kInline,   // a thread that waits or queries runs what is ready; costly host nodes go to a native worker
  kThreads,  // one thread per stream or branch of a graph, and one for host functions: nothing needs a waiter
  kRandom,   // one node at a time in any legal order, drawn from a seed, on the threads that call
  kAhead,  // nothing before a thread waits; then one stream goes as far as it can before another: the oldest (seed 0),
           // the newest (seed 1), or one and the other in turn, at places that the seed draws
};

// Takes effect at once; fails with CUDA_ERROR_ILLEGAL_STATE unless every stream is idle and none captures.
cu::CUresult set_schedule(Schedule schedule, std::uint64_t seed);

// Device work: what a kernel launch is to CUDA. `fn(user_data)` runs in stream order on the thread that plays the
// device, one at a time; in the schedule kThreads, streams run theirs side by side, as kernels do. It must not call the
// driver, as host functions must not. Captured like any other launch.
cu::CUresult launch_device(cu::CUstream stream, cu::CUhostFn fn, void *user_data);

// A thread wrote a word that a stream may wait for. Only makes the wait shorter.
void values_changed();

// Names the next node that this thread enqueues or captures; shown by traces and graph dumps.
void label_next(const char *label);

struct TraceSlice {
  std::string label;
  cu::CUgraphNodeType kind;
  std::uint64_t stream;           // a small number, 0 for the default stream
  std::uint64_t thread;           // a small number
  std::int64_t begin_ns, end_ns;  // steady clock
};
void trace_start();
std::vector<TraceSlice> trace_stop();

// Label of a captured node ("" if it has none); the node's type is cuGraphNodeGetType's.
const char *node_label(cu::CUgraphNode node);

}  // namespace weft::cpu
