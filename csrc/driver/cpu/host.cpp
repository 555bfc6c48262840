// Threads of the CPU driver: running a node, the internal thread (the worker) for host functions and destructors, the
// lanes (threads) of the schedule kThreads, and the measured costs of nodes.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "driver/cpu/state.h"

namespace weft::cpu {

namespace {

constexpr float kSmoothing = 0.2f;
constexpr float kTolerated =
    50e3f;  // ns; a host node may cost four times as much on the worker as on the player, plus this

thread_local bool t_in_callback = false;

std::uint64_t thread_number() {
  static std::atomic<std::uint64_t> next{0};
  thread_local const std::uint64_t number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

void call_back(cu::CUhostFn fn, void *data) noexcept {
  t_in_callback = true;
  fn(data);
  t_in_callback = false;
}

void invoke(const Work &work, bool blocks) {
  if (work.fn)
    call_back(work.fn, work.data);
  else if (work.value_op)
    apply_value(work, blocks);
  else if (work.bytes > 0)
    std::memmove(work.dst, work.src, work.bytes);
}

void smooth(float &mean, float value) { mean = mean > 0 ? mean + kSmoothing * (value - mean) : value; }

// The cost of an eager host function, looked up by function and argument because it has no lasting node.
struct Cost {
  cu::CUhostFn fn;
  void *data;
  float player_ns, worker_ns;
};
Cost &cost_of(const Work &work) {
  static Cost costs[256];
  const auto key = reinterpret_cast<std::uintptr_t>(work.fn) ^ (reinterpret_cast<std::uintptr_t>(work.data) >> 4);
  Cost &cost = costs[(key ^ (key >> 8)) % 256];
  if (cost.fn != work.fn || cost.data != work.data) cost = {work.fn, work.data, 0, 0};
  return cost;
}

void record_cost(Runnable &node, float ns, bool on_worker) {
  Cost *eager = node.exec ? nullptr : &cost_of(node.work);
  float &player = eager ? eager->player_ns : node.player_ns;
  float &worker = eager ? eager->worker_ns : node.worker_ns;
  if (on_worker) {
    smooth(worker, ns);
    if (ns < player) smooth(player, ns);
  } else {
    smooth(player, ns);
    worker *= 0.98f;  // decays, so that one slow run on the worker does not count forever
  }
}

std::pair<float, float> costs(const Runnable &node) {
  if (node.exec) return {node.player_ns, node.worker_ns};
  const Cost &cost = cost_of(node.work);
  return {cost.player_ns, cost.worker_ns};
}

// The current time to wake a thread on this machine. A host node that takes less runs on the calling thread.
float hand_over_ns(const State &s) { return s.least_wake_ns > 0 ? std::max(s.least_wake_ns, s.wake_ns) : 0; }

// Whether this node and the device nodes right after it in its graph take longer than a hand-over to the worker. A node
// that was never measured counts as long.
bool keeps_busy(const State &s, const Runnable *node) {
  float total = 0;
  for (int steps = 0; node && steps < 64; ++steps) {
    if (!node->exec || node->player_ns == 0) return true;
    total += node->player_ns;
    if (total >= hand_over_ns(s)) return true;
    const Runnable *following = nullptr;
    for (unsigned i = 0; i < node->successors && !following; ++i) {
      const Runnable &next = node->exec->nodes[node->exec->successors[node->first_successor + i]];
      if (next.work.kind == cu::CU_GRAPH_NODE_TYPE_KERNEL && next.predecessors == 1) following = &next;
    }
    node = following;
  }
  return false;
}

Runnable *take_for_worker(State &s) {
  if (!s.worker_called) return nullptr;
  // The worker runs nodes in parallel with the player, the thread that runs device nodes. So with a player it takes
  // nodes only if a device node runs or is ready. Without a player it takes nodes only while threads wait for progress.
  const bool beside = s.player ? s.running_device || s.ready[kDevice].head : s.waiters > 0;
  if (!beside) return nullptr;
  const Runnable *host = s.host_running ? nullptr : s.ready[kHost].head;
  const Runnable *copy = s.ready[kCopy].head;
  if (host && !worker_may_run(*host)) host = nullptr;
  if (host && (!copy || host->ticket < copy->ticket)) return s.ready[kHost].pop();
  return s.ready[kCopy].pop();
}

void host_thread(State &s) {
  Lock lock(s.mutex);
  for (;;) {
    if (!s.destructors.empty()) {
      const Destructor destructor = s.destructors.front();
      s.destructors.pop_front();
      s.destructor_running = true;
      lock.unlock();
      call_back(destructor.run, destructor.pointer);
      lock.lock();
      s.destructor_running = false;
      if (s.waiters > 0 && s.destructors.empty()) s.progress.notify_all();
    } else if (Runnable *node = s.schedule == Schedule::kThreads ? s.ready[kHost].pop() : take_for_worker(s)) {
      run_node(s, lock, node, true);
      s.worker_done_ns = now_ns();
      // The worker runs no device nodes, so a waiting thread must become the player.
      if (s.ready[kDevice].head && !s.player && s.waiters > 0) s.progress.notify_all();
      notify(s);
    } else {
      s.worker_called = false;
      if (s.waiters > 0 && !s.player && can_pick(s)) s.progress.notify_all();
      s.host_wake.wait(lock);
      if (s.worker_called) observe_wake(s, s.worker_called_ns);
    }
  }
}

void lane_thread(State &s, Lane &lane) {
  Lock lock(s.mutex);
  for (;;) {
    if (Runnable *node = lane.ready.pop()) {
      run_node(s, lock, node, false);
      notify(s);
    } else {
      lane.wake.wait(lock);
    }
  }
}

}  // namespace

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool in_callback() { return t_in_callback; }

void run_node(State &s, Lock &lock, Runnable *node, bool on_worker) {
  const bool host = node->work.kind == cu::CU_GRAPH_NODE_TYPE_HOST;
  const bool device = node->work.kind == cu::CU_GRAPH_NODE_TYPE_KERNEL;
  const bool traced = s.tracing.load(std::memory_order_relaxed);
  const bool measured = (host || device) && s.schedule == Schedule::kInline;
  const bool timed = traced || measured;
  if (host) s.host_running = true;
  if (device) s.running_device = node;
  const bool blocks =
      s.schedule == Schedule::kThreads;  // in other schedules a wait node runs only when it is satisfied
  lock.unlock();
  const std::int64_t begin = timed ? now_ns() : 0;
  invoke(node->work, blocks);
  const std::int64_t end = timed ? now_ns() : 0;
  lock.lock();
  if (host) s.host_running = false;
  if (device) s.running_device = nullptr;
  if (measured) record_cost(*node, static_cast<float>(end - begin), on_worker);
  if (traced)
    s.slices.push_back({node->work.label, node->work.kind, node->work.stream_number, thread_number(), begin, end});
  complete(s, node);
}

bool start_host_thread(State &s) {
  if (s.host_thread_started) return true;
  try {
    std::thread(host_thread, std::ref(s)).detach();
  } catch (const std::system_error &) {
    return false;
  }
  return s.host_thread_started = true;
}

bool worker_may_run(const Runnable &node) {
  const auto [player, worker] = costs(node);
  return player > 0 && worker < 4 * player + kTolerated;
}

bool worth_handing_over(const State &s, const Runnable &node) {
  return s.processors > 1 && costs(node).first >= hand_over_ns(s) && worker_may_run(node);
}

void observe_wake(State &s, std::int64_t called_ns) {
  smooth(s.wake_ns, static_cast<float>(std::max<std::int64_t>(now_ns() - called_ns, 0)));
}

void offer_to_worker(State &s) {
  const Runnable *host = s.ready[kHost].head;
  if (!host || s.schedule != Schedule::kInline || s.worker_called || s.host_running || !s.player) return;
  if (!worth_handing_over(s, *host)) {
    if (costs(*host).first >= s.least_wake_ns)
      s.wake_ns *= 0.98f;  // decays, so that one slow wake on a busy machine does not count forever
    return;
  }
  const Runnable *device = s.running_device ? s.running_device : s.ready[kDevice].head;
  if (!device || !keeps_busy(s, device) || !start_host_thread(s)) return;
  s.worker_called = true;
  s.worker_called_ns = now_ns();
  s.host_wake.notify_one();
}

Lane *acquire_lane(State &s) noexcept {
  if (!s.free_lanes.empty()) {
    Lane *lane = s.free_lanes.back();
    s.free_lanes.pop_back();
    return lane;
  }
  Lane *lane = new Lane;  // never freed, like its thread
  std::thread(lane_thread, std::ref(s), std::ref(*lane)).detach();
  return lane;
}

void trace_start() {
  State &s = state();
  Lock lock(s.mutex);
  s.slices.clear();
  s.tracing = true;
}

std::vector<TraceSlice> trace_stop() {
  State &s = state();
  Lock lock(s.mutex);
  s.tracing = false;
  return std::move(s.slices);
}

}  // namespace weft::cpu
