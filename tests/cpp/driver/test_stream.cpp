// Streams, events and callbacks outside capture.
#include <utility>

#include "fixture.h"

using namespace weft::test;

TEST_CASE("a stream keeps its order") {
  Streams s;
  std::vector<int> seen;
  std::vector<Append> tasks;
  for (int i = 0; i < 300; ++i) tasks.push_back({&seen, i});
  for (int i = 0; i < 300; ++i) {
    if (i % 2)
      CHECK_OK(d.cuLaunchHostFunc(s.a, append, &tasks[i]));
    else
      CHECK_OK(weft::cpu::launch_device(s.a, append, &tasks[i]));
  }
  CHECK_OK(d.cuStreamSynchronize(s.a));
  CHECK(seen.size() == 300);
  for (int i = 0; i < 300; ++i) CHECK(seen[i] == i);
  CHECK_OK(d.cuStreamQuery(s.a));
}

TEST_CASE("an event orders two streams") {
  Streams s;
  for (int round = 0; round < 50; ++round) {
    std::vector<int> seen;
    Append one{&seen, 1}, two{&seen, 2}, three{&seen, 3};
    CHECK_OK(d.cuLaunchHostFunc(s.a, append, &one));
    s.order(s.a, s.b);
    CHECK_OK(weft::cpu::launch_device(s.b, append, &two));
    s.order(s.b, s.c);
    CHECK_OK(d.cuLaunchHostFunc(s.c, append, &three));
    CHECK_OK(d.cuStreamSynchronize(s.c));
    CHECK((seen == std::vector<int>{1, 2, 3}));
  }
}

TEST_CASE("a wait means the record at its time") {
  Streams s;
  std::vector<int> seen;
  Append one{&seen, 1}, two{&seen, 2};
  CHECK_OK(d.cuLaunchHostFunc(s.a, append, &one));
  CHECK_OK(d.cuEventRecord(s.event, s.a));
  CHECK_OK(d.cuStreamWaitEvent(s.b, s.event, 0));
  // This later record comes after work that waits for b, so b must wait for the earlier record only.
  CHECK_OK(d.cuLaunchHostFunc(s.b, append, &two));
  CUevent other = new_event();
  CHECK_OK(d.cuEventRecord(other, s.b));
  CHECK_OK(d.cuStreamWaitEvent(s.c, other, 0));
  CHECK_OK(d.cuEventRecord(s.event, s.c));
  CHECK_OK(d.cuEventSynchronize(s.event));
  CHECK((seen == std::vector<int>{1, 2}));
  CHECK_OK(d.cuEventDestroy(other));
}

TEST_CASE("an event without a record is complete") {
  Streams s;
  CHECK_OK(d.cuEventQuery(s.event));
  CHECK_OK(d.cuEventSynchronize(s.event));
  CHECK_OK(d.cuStreamWaitEvent(s.a, s.event, 0));
  CHECK_OK(d.cuStreamSynchronize(s.a));
}

TEST_CASE("a query gets true in the end") {
  Streams s;
  std::atomic<int> ran{0};
  for (int i = 0; i < 20; ++i) CHECK_OK(d.cuLaunchHostFunc(s.a, add_one, &ran));
  CHECK_OK(d.cuEventRecord(s.event, s.a));
  CUresult result = CUDA_ERROR_NOT_READY;
  for (int i = 0; i < 100000 && result == CUDA_ERROR_NOT_READY; ++i) {
    result = d.cuEventQuery(s.event);
    std::this_thread::yield();
  }
  CHECK_OK(result);
  CHECK(ran == 20);
}

TEST_CASE("an inline stream runs nothing before a wait") {
  if (schedule() != weft::cpu::Schedule::kInline) return;
  Streams s;
  std::atomic<int> ran{0};
  CHECK_OK(d.cuLaunchHostFunc(s.a, add_one, &ran));
  nap(20);
  CHECK(ran == 0);
  CHECK_OK(d.cuStreamSynchronize(s.a));
  CHECK(ran == 1);
}

TEST_CASE("threads need no waiter") {
  if (schedule() != weft::cpu::Schedule::kThreads) return;
  Streams s;
  std::atomic<int> ran{0};
  CHECK_OK(d.cuLaunchHostFunc(s.a, add_one, &ran));
  CHECK_OK(weft::cpu::launch_device(s.a, add_one, &ran));
  for (int i = 0; i < 5000 && ran < 2; ++i) nap(1);
  CHECK(ran == 2);
}

TEST_CASE("a hundred thousand host functions") {
  Streams s;
  std::atomic<int> ran{0};
  for (int i = 0; i < 100000; ++i) CHECK_OK(d.cuLaunchHostFunc(s.a, add_one, &ran));
  CHECK_OK(d.cuStreamSynchronize(s.a));
  CHECK(ran == 100000);
}

TEST_CASE("a full queue runs what is ready") {
  if (schedule() != weft::cpu::Schedule::kInline) return;
  Streams s;
  std::atomic<int> ran{0};
  for (int i = 0; i < 3000; ++i) CHECK_OK(d.cuLaunchHostFunc(s.a, add_one, &ran));
  CHECK(ran > 1500);
  CHECK_OK(d.cuStreamSynchronize(s.a));
  CHECK(ran == 3000);
}

TEST_CASE("a destroyed stream finishes its work") {
  std::atomic<int> ran{0};
  CUstream stream = new_stream();
  CUevent event = new_event();
  for (int i = 0; i < 100; ++i) CHECK_OK(d.cuLaunchHostFunc(stream, add_one, &ran));
  CHECK_OK(d.cuEventRecord(event, stream));
  CHECK_OK(d.cuStreamDestroy(stream));
  CHECK(d.cuLaunchHostFunc(stream, add_one, &ran) == CUDA_ERROR_INVALID_HANDLE);
  CHECK_OK(d.cuEventSynchronize(event));
  CHECK(ran == 100);
  CHECK_OK(d.cuEventDestroy(event));
}

TEST_CASE("a copy copies") {
  Streams s;
  int from[3] = {1, 2, 3}, to[3] = {};
  CHECK_OK(d.cuMemcpyAsync(address(to), address(from), sizeof(from), s.a));
  CHECK_OK(d.cuMemcpyAsync(0, 0, 0, s.a));
  CHECK(d.cuMemcpyAsync(0, address(from), 4, s.a) == CUDA_ERROR_INVALID_VALUE);
  CHECK_OK(d.cuStreamSynchronize(s.a));
  CHECK(to[2] == 3);
}

TEST_CASE("elapsed time is between records") {
  Streams s;
  CUevent start = new_event(CU_EVENT_DEFAULT), end = new_event(CU_EVENT_DEFAULT);
  float milliseconds = -1;
  CHECK(d.cuEventElapsedTime(&milliseconds, start, end) == CUDA_ERROR_INVALID_HANDLE);
  CHECK_OK(d.cuEventRecord(start, s.a));
  CHECK_OK(d.cuLaunchHostFunc(s.a, [](void *) { nap(5); }, nullptr));
  CHECK_OK(d.cuEventRecord(end, s.a));
  CHECK_OK(d.cuEventSynchronize(end));
  CHECK_OK(d.cuEventElapsedTime(&milliseconds, start, end));
  CHECK(milliseconds >= 4.9f);
  CHECK(milliseconds < 5000);
  CHECK(d.cuEventElapsedTime(&milliseconds, start, s.event) == CUDA_ERROR_INVALID_HANDLE);
  CHECK_OK(d.cuEventDestroy(start));
  CHECK_OK(d.cuEventDestroy(end));
}

TEST_CASE("the default stream orders blocking streams") {
  CUstream blocking = new_stream(CU_STREAM_DEFAULT);
  for (int round = 0; round < 20; ++round) {
    std::vector<int> seen;
    Append one{&seen, 1}, two{&seen, 2}, three{&seen, 3};
    CHECK_OK(d.cuLaunchHostFunc(blocking, append, &one));
    CHECK_OK(d.cuLaunchHostFunc(nullptr, append, &two));
    CHECK_OK(d.cuLaunchHostFunc(blocking, append, &three));
    CHECK_OK(d.cuStreamSynchronize(blocking));
    CHECK((seen == std::vector<int>{1, 2, 3}));
  }
  CHECK_OK(d.cuLaunchHostFunc(blocking, [](void *) {}, nullptr));
  CHECK_OK(d.cuStreamSynchronize(nullptr));
  CHECK_OK(d.cuStreamQuery(blocking));
  CHECK_OK(d.cuStreamDestroy(blocking));
}

static std::atomic<int> results[8];
static void call_the_driver(void *stream) {
  CUevent event = nullptr;
  results[0] = d.cuStreamSynchronize(static_cast<CUstream>(stream));
  results[1] = d.cuLaunchHostFunc(static_cast<CUstream>(stream), add_one, nullptr);
  results[2] = d.cuEventCreate(&event, 0);
  results[3] = d.cuCtxSynchronize();
  results[4] = weft::cpu::set_schedule(weft::cpu::Schedule::kInline, 0);
  results[5] = d.cuStreamDestroy(static_cast<CUstream>(stream));
}

TEST_CASE("a callback may not call the driver") {
  Streams s;
  for (auto *launch : {d.cuLaunchHostFunc, weft::cpu::launch_device}) {
    for (auto &result : results) result = -1;
    CHECK_OK(launch(s.a, call_the_driver, s.a));
    CHECK_OK(d.cuStreamSynchronize(s.a));
    for (int i = 0; i < 6; ++i) CHECK(results[i] == CUDA_ERROR_NOT_PERMITTED);
  }
}

TEST_CASE("two threads synchronise at once") {
  Streams s;
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  for (CUstream stream : {s.a, s.b, s.c}) {
    threads.emplace_back([stream, &ran] {
      for (int i = 0; i < 300; ++i) {
        CHECK_OK(d.cuLaunchHostFunc(stream, add_one, &ran));
        CHECK_OK(weft::cpu::launch_device(stream, add_one, &ran));
        if (i % 7 == 0) CHECK_OK(d.cuStreamSynchronize(stream));
        if (i % 11 == 0) CHECK_OK(d.cuCtxSynchronize());
      }
      CHECK_OK(d.cuStreamSynchronize(stream));
    });
  }
  for (auto &thread : threads) thread.join();
  CHECK(ran == 1800);
}

TEST_CASE("device nodes of inline streams run one at a time") {
  if (schedule() != weft::cpu::Schedule::kInline) return;
  Streams s;
  static std::atomic<int> running{0}, most{0};
  running = most = 0;
  const auto work = [](void *) {
    const int now = ++running;
    if (now > most) most = now;
    nap(1);
    --running;
  };
  for (int i = 0; i < 5; ++i)
    for (CUstream stream : {s.a, s.b, s.c}) CHECK_OK(weft::cpu::launch_device(stream, work, nullptr));
  std::thread other([&] { CHECK_OK(d.cuStreamSynchronize(s.b)); });
  CHECK_OK(d.cuStreamSynchronize(s.a));
  other.join();
  CHECK_OK(d.cuCtxSynchronize());
  CHECK(most == 1);
}

TEST_CASE("a costly host node runs beside a device node") {
  if (schedule() != weft::cpu::Schedule::kInline) return;
  // With one processor, no node goes to the worker.
  const int processors = std::exchange(weft::cpu::state().costs.processors, 2);
  Streams s;
  static std::atomic<int> launches{0}, hosts{0};
  launches = hosts = 0;
  s.begin();
  s.order(s.a, s.b);
  // In the second launch the device node waits for the host node, so it ends only if both run at the same time.
  CHECK_OK(weft::cpu::launch_device(
      s.a,
      [](void *) {
        if (++launches < 2) return nap(30);
        for (int i = 0; i < 20000 && hosts < 2; ++i) nap(1);
      },
      nullptr));
  CHECK_OK(d.cuLaunchHostFunc(
      s.b,
      [](void *) {
        if (hosts == 0) nap(30);
        ++hosts;
      },
      nullptr));
  s.order(s.b, s.a);
  CUgraphExec exec = instantiate(s.end());
  for (int i = 0; i < 2; ++i) {
    weft::cpu::trace_start();
    CHECK_OK(d.cuGraphLaunch(exec, s.a));
    CHECK_OK(d.cuStreamSynchronize(s.a));
  }
  const auto slices = weft::cpu::trace_stop();
  CHECK(slices.size() == 2);
  if (slices.size() == 2) {
    CHECK(slices[0].kind == CU_GRAPH_NODE_TYPE_HOST);  // slices are in the order of their ends
    CHECK(slices[0].thread != slices[1].thread);
    CHECK(slices[0].end_ns <= slices[1].end_ns);
  }
  weft::cpu::state().costs.processors = processors;
  CHECK_OK(d.cuGraphExecDestroy(exec));
}

// The next tests hand host nodes to the worker. On a busy machine the worker may wake too late and the player
// runs them; then the tests pass without testing anything.
struct TwoProcessors {
  const int processors = std::exchange(weft::cpu::state().costs.processors, 2);
  ~TwoProcessors() { weft::cpu::state().costs.processors = processors; }
};

void nap_until(const std::atomic<bool> &flag, int most_ms) {
  for (int i = 0; i < most_ms && !flag; ++i) nap(1);
}

// Launches a graph of two nodes. This thread runs the first one. Meanwhile the worker ends the wait of this thread, and
// another thread waits for the graph. The first node does not end the graph, so `notify` does not wake that thread.
// `second` captures the second node. `then` runs after the wait of this thread.
template <class Second, class Then>
void wait_for_the_second_node(Second second, Then then) {
  const TwoProcessors two;
  Streams s;
  struct Flags {
    std::atomic<bool> device{false}, other{false}, host{false};
  } flags;
  const auto host = [](void *data) {
    nap(30);
    static_cast<Flags *>(data)->host = true;
  };
  CHECK_OK(d.cuLaunchHostFunc(s.a, host, &flags));
  CHECK_OK(d.cuStreamSynchronize(s.a));  // now its cost is known
  flags.host = false;
  s.begin();
  CHECK_OK(weft::cpu::launch_device(
      s.a,
      [](void *data) {
        auto &seen = *static_cast<Flags *>(data);
        seen.device = true;
        nap_until(seen.other, 1000);
        nap_until(seen.host, 1000);
        nap(20);
      },
      &flags));
  second(s.a);
  CUgraphExec exec = instantiate(s.end());
  CHECK_OK(d.cuGraphLaunch(exec, s.b));
  CHECK_OK(d.cuLaunchHostFunc(s.a, host, &flags));
  std::thread other([&] {
    nap_until(flags.device, 1000);
    flags.other = true;
    CHECK_OK(d.cuStreamSynchronize(s.b));
  });
  CHECK_OK(d.cuStreamSynchronize(s.a));
  then();
  other.join();
  CHECK_OK(d.cuGraphExecDestroy(exec));
}

TEST_CASE("a waiting thread plays on when the worker ends the player's wait") {
  if (schedule() != weft::cpu::Schedule::kInline) return;
  std::atomic<int> ran{0};
  wait_for_the_second_node([&](CUstream stream) { CHECK_OK(weft::cpu::launch_device(stream, add_one, &ran)); }, [] {});
  CHECK(ran == 1);
}

TEST_CASE("a waiting thread checks a word that a node begins to wait for") {
  if (schedule() != weft::cpu::Schedule::kInline) return;
  cuuint32_t word = 0;
  wait_for_the_second_node(
      [&](CUstream stream) { CHECK_OK(d.cuStreamWaitValue32(stream, address(&word), 1, CU_STREAM_WAIT_VALUE_EQ)); },
      [&] {
        nap(20);
        __atomic_store_n(&word, 1, __ATOMIC_RELEASE);  // and no values_changed()
      });
}

TEST_CASE("a waiting thread runs a host node that is slow on the worker") {
  if (schedule() != weft::cpu::Schedule::kInline) return;
  const TwoProcessors two;
  Streams s;
  static std::thread::id player;
  static std::atomic<int> ran;
  player = std::this_thread::get_id();
  ran = 0;
  s.begin();
  s.order(s.a, s.b);
  CHECK_OK(weft::cpu::launch_device(s.a, [](void *) { nap(20); }, nullptr));
  CHECK_OK(d.cuLaunchHostFunc(s.b, [](void *) { nap(40); }, nullptr));
  CHECK_OK(d.cuLaunchHostFunc(
      s.b,
      [](void *) {
        ++ran;
        if (std::this_thread::get_id() != player) nap(20);
      },
      nullptr));
  s.order(s.b, s.a);
  CUgraphExec exec = instantiate(s.end());
  // The first launch measures the nodes. In the second the last node is slow on the worker. From the third on the
  // worker leaves that node to this thread, which sleeps by then.
  for (int i = 0; i < 4; ++i) {
    CHECK_OK(d.cuGraphLaunch(exec, s.a));
    CHECK_OK(d.cuStreamSynchronize(s.a));
  }
  CHECK(ran == 4);
  CHECK_OK(d.cuGraphExecDestroy(exec));
}

TEST_CASE("a waiting thread runs a device node beside the worker's next host node") {
  if (schedule() != weft::cpu::Schedule::kInline) return;
  const TwoProcessors two;
  Streams s;
  static std::thread::id player;
  static std::atomic<bool> on_worker, device, host_saw_it;
  player = std::this_thread::get_id();
  host_saw_it = true;
  s.begin();
  s.order(s.a, s.b);
  CHECK_OK(weft::cpu::launch_device(s.a, [](void *) { nap(20); }, nullptr));
  CHECK_OK(d.cuLaunchHostFunc(
      s.b,
      [](void *) {
        nap(40);
        on_worker = std::this_thread::get_id() != player;
      },
      nullptr));
  s.order(s.b, s.c);
  CHECK_OK(d.cuLaunchHostFunc(
      s.b,
      [](void *) {
        if (!on_worker) return nap(20);
        nap_until(device, 20000);
        host_saw_it = device.load();
      },
      nullptr));
  CHECK_OK(weft::cpu::launch_device(s.c, [](void *) { device = true; }, nullptr));
  s.order(s.b, s.a);
  s.order(s.c, s.a);
  CUgraphExec exec = instantiate(s.end());
  for (int i = 0; i < 3; ++i) {
    device = on_worker = false;
    CHECK_OK(d.cuGraphLaunch(exec, s.a));
    CHECK_OK(d.cuStreamSynchronize(s.a));
    CHECK(host_saw_it);
  }
  CHECK_OK(d.cuGraphExecDestroy(exec));
}

TEST_CASE("the schedule changes only when idle") {
  if (schedule() == weft::cpu::Schedule::kThreads) return;
  Streams s;
  std::atomic<int> ran{0};
  for (int i = 0; i < 200; ++i) CHECK_OK(d.cuLaunchHostFunc(s.a, add_one, &ran));
  CHECK_EQ(weft::cpu::set_schedule(schedule(), 1), ran < 200 ? CUDA_ERROR_ILLEGAL_STATE : CUDA_SUCCESS);
  CHECK_OK(d.cuCtxSynchronize());
  s.begin();
  CHECK(weft::cpu::set_schedule(schedule(), 1) == CUDA_ERROR_ILLEGAL_STATE);
  CHECK_OK(d.cuGraphDestroy(s.end()));
  CHECK_OK(weft::cpu::set_schedule(schedule(), 1));
}
