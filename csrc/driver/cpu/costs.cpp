#include "driver/cpu/costs.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "driver/cpu/state.h"

namespace weft::cpu {

namespace {

constexpr float kSmoothing = 0.2f;  // the weight of a new time in a mean
constexpr float kDecay = 0.98f;     // of a time that has not been measured again
// A host node may take this many times as long on the worker as on the player, plus this many ns.
constexpr float kMaxSlowdown = 4, kMaxDelay = 50e3f;
constexpr int kMaxNodesAhead = 64;

void smooth(float &mean, float value) { mean = mean > 0 ? mean + kSmoothing * (value - mean) : value; }

}  // namespace

Costs::Costs() {
  cpu_set_t allowed;
  processors = sched_getaffinity(0, sizeof allowed, &allowed) == 0
                   ? CPU_COUNT(&allowed)
                   : static_cast<int>(std::thread::hardware_concurrency());
}

// A later function with the same place in the table replaces an earlier one.
NodeCost &Costs::eager_cost(const Work &work) {
  const auto key = reinterpret_cast<std::uintptr_t>(work.fn) ^ (reinterpret_cast<std::uintptr_t>(work.data) >> 4);
  EagerCost &eager = eager_[(key ^ (key >> 8)) % eager_.size()];
  if (eager.fn != work.fn || eager.data != work.data) eager = {work.fn, work.data, {}};
  return eager.cost;
}

NodeCost &Costs::cost_of(Runnable &node) { return node.exec ? node.cost : eager_cost(node.work); }
NodeCost Costs::cost_of(const Runnable &node) { return node.exec ? node.cost : eager_cost(node.work); }

// The current time to wake a thread on this machine, at least `least_wake_ns`. A host node that takes less runs on the
// player.
float Costs::hand_over_ns() const { return least_wake_ns > 0 ? std::max(least_wake_ns, wake_ns_) : 0; }

void Costs::record(Runnable &node, float ns, bool on_worker) {
  auto &[player, worker] = cost_of(node);
  if (on_worker) {
    smooth(worker, ns);
    // While the worker runs the node, the player's mean is not measured. A faster run here shows that it is too high.
    if (ns < player) smooth(player, ns);
  } else {
    smooth(player, ns);
    worker *= kDecay;  // so that one slow run on the worker does not keep the node from it for ever
  }
}

void Costs::record_wake(std::int64_t notified_ns) {
  smooth(wake_ns_, static_cast<float>(std::max<std::int64_t>(now_ns() - notified_ns, 0)));
}

bool Costs::worker_may_run(const Runnable &host) {
  const auto [player, worker] = cost_of(host);
  return player > 0 && worker < kMaxSlowdown * player + kMaxDelay;
}

bool Costs::worth_handing_over(const Runnable &host) {
  return processors > 1 && cost_of(host).player_ns >= hand_over_ns() && worker_may_run(host);
}

bool Costs::keeps_busy(const Runnable *device) const {
  float total = 0;
  for (int steps = 0; device && steps < kMaxNodesAhead; ++steps) {
    if (!device->exec || device->cost.player_ns == 0) return true;
    total += device->cost.player_ns;
    if (total >= hand_over_ns()) return true;
    const Runnable *following = nullptr;
    for (unsigned i = 0; i < device->successors && !following; ++i) {
      const Runnable &next = device->exec->nodes[device->exec->successors[device->first_successor + i]];
      if (next.work.kind == cu::CU_GRAPH_NODE_TYPE_KERNEL && next.predecessors == 1) following = &next;
    }
    device = following;
  }
  return false;
}

void Costs::forget_slow_wakes(const Runnable &host) {
  if (cost_of(host).player_ns >= least_wake_ns) wake_ns_ *= kDecay;
}

}  // namespace weft::cpu
