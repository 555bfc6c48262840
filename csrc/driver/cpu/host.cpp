// Threads of the CPU driver: running a node, the internal thread (the worker) for host functions and destructors, and
// the lanes (threads) of the schedule kThreads.
#include <chrono>
#include <cstring>

#include "driver/cpu/state.h"

namespace weft::cpu {

namespace {

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

Runnable *take_for_worker(State &s) {
  if (!s.worker_called) return nullptr;
  // The table in state.h has the roles. With a player, the worker takes nodes only to run them in parallel with device
  // nodes. Without one, it takes them only while a thread waits: in this schedule nothing else makes the device run.
  const bool in_parallel = s.player ? s.running_device || s.ready[kDevice].head : s.waiters > 0;
  if (!in_parallel) return nullptr;
  const Runnable *host = s.host_running ? nullptr : s.ready[kHost].head;
  const Runnable *copy = s.ready[kCopy].head;
  if (host && !s.costs.worker_may_run(*host)) host = nullptr;
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
      // `wait_for_all` waits for all destructors. This was the last one; one that is added later notifies again.
      if (s.waiters > 0 && s.destructors.empty()) s.progress.notify_all();
    } else if (Runnable *node = s.schedule == Schedule::kThreads ? s.ready[kHost].pop() : take_for_worker(s)) {
      run_node(s, lock, node, true);
      s.worker_done_ns = now_ns();
      // The node may have made a device node ready, which the worker never takes. Without a player, a waiting thread
      // must run it. It is called here, before the worker takes its next node, so that both run in parallel. Other
      // ready nodes can wait: the worker takes them next, or calls the player below.
      if (s.ready[kDevice].head) call_player(s);
      notify(s);
    } else {
      s.worker_called = false;
      // A node may be ready that is slow on the worker or was never measured. The threads that wait went to sleep
      // before it was ready, and from here on only they can run it. The lock is held from here to the wait, so nothing
      // becomes ready in between.
      call_player(s);
      s.host_wake.wait(lock);
      if (s.worker_called) s.costs.record_wake(s.worker_called_ns);
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
  if (measured) s.costs.record(*node, static_cast<float>(end - begin), on_worker);
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

void offer_to_worker(State &s) {
  const Runnable *host = s.ready[kHost].head;
  if (!host || s.schedule != Schedule::kInline || s.worker_called || s.host_running || !s.player) return;
  if (!s.costs.worth_handing_over(*host)) return s.costs.forget_slow_wakes(*host);
  const Runnable *device = s.running_device ? s.running_device : s.ready[kDevice].head;
  if (!device || !s.costs.keeps_busy(device) || !start_host_thread(s)) return;
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
