// Host functions on the polling thread: their order, their lifetimes, and the wake-up of the thread.
#include "driver/polling/polled.h"
#include "fixture.h"

using namespace weft::test;

namespace {

// Captures a polled call on `stream`. The graph owns it.
weft::PolledCall *polled(CUstream stream, CUhostFn fn, void *data) {
  weft::PolledCall *call = weft::new_polled_call(d, fn, data);
  CHECK(call != nullptr);
  CUstreamCaptureStatus status;
  CUgraph graph = nullptr;
  CUuserObject object = nullptr;
  CHECK_OK(d.cuStreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr));
  const auto free = [](void *p) { weft::free_polled_call(static_cast<weft::PolledCall *>(p)); };
  CHECK_OK(d.cuUserObjectCreate(&object, call, free, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  CHECK_OK(d.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  CHECK_OK(weft::launch_polled(stream, *call, "task"));
  return call;
}

void replay(CUgraphExec exec, CUstream stream, int runs) {
  weft::expect_polled(d, runs);
  CHECK_OK(d.cuGraphLaunch(exec, stream));
}

}  // namespace

TEST_CASE("the cpu can poll") {
  const char *why = nullptr;
  CHECK(weft::can_poll(d, &why));
  Driver lacking = d;
  lacking.cuStreamWaitValue32 = nullptr;
  CHECK(!weft::can_poll(lacking, &why));
  CHECK(why != nullptr);
  CHECK(weft::prepare_polling(lacking) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(weft::new_polled_call(lacking, add_one, nullptr) == nullptr);
  CHECK_OK(weft::prepare_polling(d));
}

TEST_CASE("polled calls keep the order of their stream") {
  CHECK_OK(weft::prepare_polling(d));
  Streams s;
  std::vector<int> seen;
  std::vector<Append> tasks;
  for (int i = 0; i < 12; ++i) tasks.push_back({&seen, i});
  s.begin();
  for (int i = 0; i < 12; ++i) {
    if (i % 3 == 0) CHECK_OK(weft::cpu::launch_device(s.a, append, &tasks[i]));
    if (i % 3 == 1) polled(s.a, append, &tasks[i]);
    if (i % 3 == 2) CHECK_OK(d.cuLaunchHostFunc(s.a, append, &tasks[i]));
  }
  CUgraphExec exec = instantiate(s.end());
  for (int i = 0; i < 100; ++i) replay(exec, s.b, 4);
  CHECK_OK(d.cuStreamSynchronize(s.b));
  CHECK(seen.size() == 1200);
  for (std::size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == i % 12);
  CHECK_OK(d.cuGraphExecDestroy(exec));
}

TEST_CASE("a polled call is three operations") {
  CHECK_OK(weft::prepare_polling(d));
  Streams s;
  std::atomic<int> ran{0};
  s.begin();
  polled(s.a, add_one, &ran);
  CUgraph graph = s.end();
  CUgraphNode nodes[4];
  std::size_t count = 4;
  CHECK_OK(d.cuGraphGetNodes(graph, nodes, &count));
  CHECK(count == 3);
  const char *labels[] = {"task: request", "task", "task: reset"};
  for (std::size_t i = 0; i < count; ++i) CHECK(weft::cpu::node_label(nodes[i]) == std::string(labels[i]));
  CHECK_OK(d.cuGraphDestroy(graph));
  CHECK(ran == 0);
}

TEST_CASE("polled calls of branches run one at a time") {
  CHECK_OK(weft::prepare_polling(d));
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
  CHECK_OK(d.cuStreamSynchronize(s.a));
  CHECK(ran == 250);
  CHECK(overlaps == 0);
  CHECK_OK(d.cuGraphExecDestroy(exec));
}

TEST_CASE("a polled graph destroyed in flight is run to its end") {
  CHECK_OK(weft::prepare_polling(d));
  for (int round = 0; round < 5; ++round) {
    Streams s;
    std::atomic<int> ran{0};
    s.begin();
    for (int i = 0; i < 4; ++i) polled(s.a, add_one, &ran);
    CUgraphExec exec = instantiate(s.end());
    for (int i = 0; i < 10; ++i) replay(exec, s.a, 4);
    CHECK_OK(d.cuGraphExecDestroy(exec));
    CHECK_OK(d.cuStreamSynchronize(s.a));
    CHECK(ran == 40);
    CHECK_OK(d.cuCtxSynchronize());  // the words are free again
  }
}

TEST_CASE("a run that nobody expected is only late") {
  CHECK_OK(weft::prepare_polling(d));
  Streams s;
  std::atomic<int> ran{0};
  s.begin();
  polled(s.a, add_one, &ran);
  CUgraphExec exec = instantiate(s.end());
  CHECK_OK(d.cuGraphLaunch(exec, s.a));
  CHECK_OK(d.cuStreamSynchronize(s.a));
  CHECK(ran == 1);
  weft::expect_polled(d, 3);  // launches that fail
  weft::expect_polled(d, -3);
  nap(2);
  replay(exec, s.a, 1);
  CHECK_OK(d.cuStreamSynchronize(s.a));
  CHECK(ran == 2);
  CHECK(weft::drain_polled(1));
  CHECK_OK(d.cuGraphExecDestroy(exec));
}

TEST_CASE("words are used again and room is made") {
  CHECK_OK(weft::prepare_polling(d));
  std::vector<weft::PolledCall *> calls;
  for (int i = 0; i < 5000; ++i) {
    CHECK_OK(weft::prepare_polling(d));
    calls.push_back(weft::new_polled_call(d, add_one, nullptr));
    CHECK(calls.back() != nullptr);
  }
  weft::PolledCall *last = calls.back();
  weft::free_polled_call(last);
  CHECK(weft::new_polled_call(d, add_one, nullptr) == last);
  for (weft::PolledCall *call : calls) weft::free_polled_call(call);
}

TEST_CASE("threads replay polled graphs of their own") {
  CHECK_OK(weft::prepare_polling(d));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      struct Cells {
        long long x = 1, copy = 0, sum = 0;
      } cells;
      CUstream a = new_stream(), b = new_stream();
      CUevent event = new_event();
      CHECK_OK(d.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
      CHECK_OK(d.cuMemcpyAsync(address(&cells.copy), address(&cells.x), sizeof cells.x, a));
      CHECK_OK(d.cuEventRecord(event, a));
      CHECK_OK(d.cuStreamWaitEvent(b, event, 0));
      polled(b, [](void *p) { static_cast<Cells *>(p)->sum += static_cast<Cells *>(p)->copy; }, &cells);
      CHECK_OK(weft::cpu::launch_device(a, [](void *p) { ++static_cast<Cells *>(p)->x; }, &cells));
      CHECK_OK(d.cuEventRecord(event, b));
      CHECK_OK(d.cuStreamWaitEvent(a, event, 0));
      CUgraph graph = nullptr;
      CHECK_OK(d.cuStreamEndCapture(a, &graph));
      CUgraphExec exec = instantiate(graph);
      for (int i = 0; i < 60; ++i) {
        replay(exec, a, 1);
        if (i % 10 == 0) CHECK_OK(d.cuStreamSynchronize(a));
      }
      CHECK_OK(d.cuGraphExecDestroy(exec));
      CHECK_OK(d.cuStreamSynchronize(a));
      CHECK(cells.sum == 60 * 61 / 2);
      CHECK_OK(d.cuEventDestroy(event));
      CHECK_OK(d.cuStreamDestroy(a));
      CHECK_OK(d.cuStreamDestroy(b));
    });
  }
  for (auto &thread : threads) thread.join();
  CHECK_OK(d.cuCtxSynchronize());
}
