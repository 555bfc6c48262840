// The costs of nodes, and whether it pays to hand a node to the worker. Internal to this folder.
//
// In the schedule kInline, the player (a thread that waits or queries) runs the nodes. It may hand a host node to the
// worker (an internal thread), which runs it in parallel with device nodes. That pays if the host node and the device
// nodes each take longer than waking a thread, and the host node is not much slower on the worker. So each run of a
// host or device node is timed, and each wake-up of a thread that the hand-over notifies.
//
// Costs only decide which thread runs a node. A wrong estimate costs time, but no node waits for ever: without other
// work the player runs every ready node.
#pragma once

#include <array>
#include <cstdint>

#include "driver/cpu/cpu.h"

namespace weft::cpu {

struct Runnable;
struct Work;

// The mean time of a node on each thread, in ns. 0: it never ran there.
struct NodeCost {
  float player_ns = 0, worker_ns = 0;
};

class Costs {
 public:
  Costs();

  // Records a run of a node of this duration.
  void record(Runnable &node, float ns, bool on_worker);
  // Records a wake-up: the calling thread was notified at this time, and runs now.
  void record_wake(std::int64_t notified_ns);

  // Whether the worker may take this host node: the player has run it before, and the worker is not much slower.
  bool worker_may_run(const Runnable &host);
  // Whether this host node should go to the worker as soon as device nodes can run in parallel. It should if the worker
  // may run it, it takes at least as long as a hand-over, and there is a second processor.
  bool worth_handing_over(const Runnable &host);
  // Whether this device node and the device nodes right after it in its graph take longer than a hand-over. An eager
  // node, or one that was never measured, counts as long.
  bool keeps_busy(const Runnable *device) const;
  // Lowers the measured wake-up time a little if this host node takes at least `least_wake_ns`. Then one slow wake-up
  // on a busy machine does not keep it from the worker for ever.
  void forget_slow_wakes(const Runnable &host);

  int processors;               // available to this process
  float least_wake_ns = 50e3f;  // 0 (in tests): hand over every host node that can be

 private:
  // The cost of an eager launch, by function and argument because it has no lasting node.
  struct EagerCost {
    cu::CUhostFn fn = nullptr;
    void *data = nullptr;
    NodeCost cost;
  };

  NodeCost &cost_of(Runnable &node);
  NodeCost cost_of(const Runnable &node);
  NodeCost &eager_cost(const Work &work);
  float hand_over_ns() const;

  float wake_ns_ = 0;  // mean time to wake a thread
  std::array<EagerCost, 256> eager_{};
};

}  // namespace weft::cpu
