// The CPU driver's calls beyond CUDA's: device work, schedules, traces. Python-free.
//
// In cases that CUDA leaves open or does not document, this driver behaves as follows:
// - Host functions run one at a time, as on one host-function thread; destructors of user objects run on an internal
//   thread, and cuCtxSynchronize waits for those that are due.
// - cuGraphLaunch into a captured stream is CUDA_ERROR_NOT_SUPPORTED and invalidates the capture: no child graphs.
// - A captured stream can't be destroyed (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); the capture must be ended first.
// - In the schedule kInline, a query runs ready work, at most up to the point that it queries.
// - A word that a stream waits for (cuStreamWaitValue32) may be anywhere in memory. A thread that waits for the device
//   polls it, and checks it at once after `values_changed`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "driver/driver.h"

namespace weft::cpu {

enum class Schedule {
  kInline,   // a thread that waits or queries runs the ready work; a native worker runs costly host nodes
  kThreads,  // a thread for each stream or branch of a graph, and one for host functions
  kRandom,   // one node at a time on the calling threads, in a legal order that the seed draws
  kAhead,    // nothing runs until a thread waits (a query runs one node); then one stream runs as far as it can: the
             // oldest (seed 0), the newest (seed 1), or the two in turn, switching at random (other seeds)
};

// Changes the schedule at once. Returns CUDA_ERROR_ILLEGAL_STATE unless every stream is idle and none captures.
cu::CUresult set_schedule(Schedule schedule, std::uint64_t seed);

// Launches device work, the counterpart of a CUDA kernel. `fn(user_data)` runs in stream order on the thread that plays
// the device, one call at a time. In the schedule kThreads the work of several streams runs concurrently, as kernels
// do. Like a host function it must not call the driver. Captured like any other launch.
cu::CUresult launch_device(cu::CUstream stream, cu::CUhostFn fn, void *user_data);

// Tells the driver that a thread wrote a word that a stream may wait for. The call is optional: it shortens the wait.
void values_changed();

// Names the next node that this thread enqueues or captures, for traces and graph dumps.
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

// The label of a captured node, "" if it has none. cuGraphNodeGetType gives the node's type.
const char *node_label(cu::CUgraphNode node);

}  // namespace weft::cpu
