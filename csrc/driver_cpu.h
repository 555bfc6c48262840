// What the CPU driver offers beyond CUDA's calls: device work, schedules, traces. Python-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "driver.h"

namespace weft::cpu {

enum class Schedule {
  kInline,   // whoever waits runs what is ready; costly host nodes go to a native worker
  kThreads,  // one thread per stream and one for host functions, as CUDA has it
  kRandom,   // one node at a time in any legal order, drawn from a seed
};

// Takes effect at once; fails with CUDA_ERROR_ILLEGAL_STATE unless every stream is idle and none captures.
cu::CUresult set_schedule(Schedule schedule, std::uint64_t seed);

// Device work: what a kernel launch is to CUDA. `fn(user_data)` runs in stream order on the thread that plays the
// device; one device node runs at a time. Captured like any other launch.
cu::CUresult launch_device(cu::CUstream stream, cu::CUhostFn fn, void *user_data);

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
