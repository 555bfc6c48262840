// Host functions that a polling thread runs: their order, their life, and what wakes the thread.
#include "driver/polling/polled.h"
#include "fixture.h"

using namespace weft::test;

namespace {

// A call that is captured from `stream`, and goes with the graph.
weft::PolledCall *polled(CUstream stream, CUhostFn fn, void *data) {
  weft::PolledCall *call = weft::new_polled_call(d, fn, data);
  CHECK(call != nullptr);
  CUstreamCaptureStatus status;
  CUgraph graph = nullptr;
  CUuserObject object = nullptr;
  OK(d.cuStreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr));
  const auto free = [](void *p) { weft::free_polled_call(static_cast<weft::PolledCall *>(p)); };
  OK(d.cuUserObjectCreate(&object, call, free, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  OK(d.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  OK(weft::launch_polled(stream, *call, "task"));
  return call;
}

void replay(CUgraphExec exec, CUstream stream, int runs) {
  weft::expect_polled(d, runs);
  OK(d.cuGraphLaunch(exec, stream));
}

}  // namespace

TEST(the_cpu_can_poll) {
  const char *why = nullptr;
  CHECK(weft::can_poll(d, &why));
  Driver lacking = d;
  lacking.cuStreamWaitValue32 = nullptr;
  CHECK(!weft::can_poll(lacking, &why) && why != nullptr);
  EQUAL(weft::prepare_polling(lacking), CUDA_ERROR_NOT_SUPPORTED);
  CHECK(weft::new_polled_call(lacking, add_one, nullptr) == nullptr);
  OK(weft::prepare_polling(d));
}

TEST(polled_calls_keep_the_order_of_their_stream) {
  OK(weft::prepare_polling(d));
  Streams s;
  std::vector<int> seen;
  std::vector<Append> tasks;
  for (int i = 0; i < 12; ++i) tasks.push_back({&seen, i});
  s.begin();
  for (int i = 0; i < 12; ++i) {
    if (i % 3 == 0) OK(weft::cpu::launch_device(s.a, append, &tasks[i]));
    if (i % 3 == 1) polled(s.a, append, &tasks[i]);
    if (i % 3 == 2) OK(d.cuLaunchHostFunc(s.a, append, &tasks[i]));
  }
  CUgraphExec exec = instantiate(s.end());
  for (int i = 0; i < 100; ++i) replay(exec, s.b, 4);
  OK(d.cuStreamSynchronize(s.b));
  EQUAL(seen.size(), 1200);
  for (std::size_t i = 0; i < seen.size(); ++i) EQUAL(seen[i], i % 12);
  OK(d.cuGraphExecDestroy(exec));
}

TEST(a_polled_call_is_three_operations) {
  OK(weft::prepare_polling(d));
  Streams s;
  std::atomic<int> ran{0};
  s.begin();
  polled(s.a, add_one, &ran);
  CUgraph graph = s.end();
  CUgraphNode nodes[4];
  std::size_t count = 4;
  OK(d.cuGraphGetNodes(graph, nodes, &count));
  EQUAL(count, 3);
  const char *labels[] = {"task: request", "task", "task: reset"};
  for (std::size_t i = 0; i < count; ++i) CHECK(weft::cpu::node_label(nodes[i]) == std::string(labels[i]));
  OK(d.cuGraphDestroy(graph));
  EQUAL(ran, 0);
}

TEST(polled_calls_of_branches_run_one_at_a_time) {
  OK(weft::prepare_polling(d));
  Streams s;
  static std::atomic<int> running{0}, overlaps{0}, ran{0};
  running = overlaps = ran = 0;
  const auto task = [](void *) {
    overlaps += ++running != 1;
    std::this_thread::yield();
    --running;
    ++ran;
  };
  s.begin();
  s.order(s.a, s.b);
  s.order(s.a, s.c);
  for (CUstream stream : {s.a, s.b, s.c, s.b, s.c}) polled(stream, task, nullptr);
  s.order(s.b, s.a);
  s.order(s.c, s.a);
  CUgraphExec exec = instantiate(s.end());
  for (int i = 0; i < 50; ++i) replay(exec, s.a, 5);
  OK(d.cuStreamSynchronize(s.a));
  EQUAL(ran, 250);
  EQUAL(overlaps, 0);
  OK(d.cuGraphExecDestroy(exec));
}

TEST(a_polled_graph_destroyed_in_flight_is_run_to_its_end) {
  OK(weft::prepare_polling(d));
  for (int round = 0; round < 5; ++round) {
    Streams s;
    std::atomic<int> ran{0};
    s.begin();
    for (int i = 0; i < 4; ++i) polled(s.a, add_one, &ran);
    CUgraphExec exec = instantiate(s.end());
    for (int i = 0; i < 10; ++i) replay(exec, s.a, 4);
    OK(d.cuGraphExecDestroy(exec));
    OK(d.cuStreamSynchronize(s.a));
    EQUAL(ran, 40);
    OK(d.cuCtxSynchronize());  // the words are free again
  }
}

TEST(a_run_that_nobody_expected_is_only_late) {
  OK(weft::prepare_polling(d));
  Streams s;
  std::atomic<int> ran{0};
  s.begin();
  polled(s.a, add_one, &ran);
  CUgraphExec exec = instantiate(s.end());
  OK(d.cuGraphLaunch(exec, s.a));
  OK(d.cuStreamSynchronize(s.a));
  EQUAL(ran, 1);
  weft::expect_polled(d, 3);  // launches that fail
  weft::expect_polled(d, -3);
  nap(2);
  replay(exec, s.a, 1);
  OK(d.cuStreamSynchronize(s.a));
  EQUAL(ran, 2);
  CHECK(weft::drain_polled(1));
  OK(d.cuGraphExecDestroy(exec));
}

TEST(words_are_used_again_and_room_is_made) {
  OK(weft::prepare_polling(d));
  std::vector<weft::PolledCall *> calls;
  for (int i = 0; i < 5000; ++i) {
    OK(weft::prepare_polling(d));
    calls.push_back(weft::new_polled_call(d, add_one, nullptr));
    CHECK(calls.back() != nullptr);
  }
  weft::PolledCall *last = calls.back();
  weft::free_polled_call(last);
  CHECK(weft::new_polled_call(d, add_one, nullptr) == last);
  for (weft::PolledCall *call : calls) weft::free_polled_call(call);
}

TEST(threads_replay_polled_graphs_of_their_own) {
  OK(weft::prepare_polling(d));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      struct Cells {
        long long x = 1, copy = 0, sum = 0;
      } cells;
      CUstream a = new_stream(), b = new_stream();
      CUevent event = new_event();
      OK(d.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
      OK(d.cuMemcpyAsync(address(&cells.copy), address(&cells.x), sizeof cells.x, a));
      OK(d.cuEventRecord(event, a));
      OK(d.cuStreamWaitEvent(b, event, 0));
      polled(b, [](void *p) { static_cast<Cells *>(p)->sum += static_cast<Cells *>(p)->copy; }, &cells);
      OK(weft::cpu::launch_device(a, [](void *p) { ++static_cast<Cells *>(p)->x; }, &cells));
      OK(d.cuEventRecord(event, b));
      OK(d.cuStreamWaitEvent(a, event, 0));
      CUgraph graph = nullptr;
      OK(d.cuStreamEndCapture(a, &graph));
      CUgraphExec exec = instantiate(graph);
      for (int i = 0; i < 60; ++i) {
        replay(exec, a, 1);
        if (i % 10 == 0) OK(d.cuStreamSynchronize(a));
      }
      OK(d.cuGraphExecDestroy(exec));
      OK(d.cuStreamSynchronize(a));
      EQUAL(cells.sum, 60 * 61 / 2);
      OK(d.cuEventDestroy(event));
      OK(d.cuStreamDestroy(a));
      OK(d.cuStreamDestroy(b));
    });
  }
  for (auto &thread : threads) thread.join();
  OK(d.cuCtxSynchronize());
}
