// Graph replay, the lifetimes of graphs, and user objects.
#include "fixture.h"

using namespace weft::test;

TEST_CASE("a replay repeats the capture") {
  Streams s;
  std::vector<int> seen;
  Append one{&seen, 1}, two{&seen, 2}, three{&seen, 3};
  s.begin();
  CHECK_OK(d.cuLaunchHostFunc(s.a, append, &one));
  s.order(s.a, s.b);
  CHECK_OK(weft::cpu::launch_device(s.b, append, &two));
  s.order(s.b, s.a);
  CHECK_OK(d.cuLaunchHostFunc(s.a, append, &three));
  CUgraphExec exec = instantiate(s.end());
  for (int i = 0; i < 100; ++i) CHECK_OK(d.cuGraphLaunch(exec, s.c));
  CHECK_OK(d.cuStreamSynchronize(s.c));
  CHECK(seen.size() == 300);
  for (std::size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == 1 + i % 3);
  CHECK_OK(d.cuGraphExecDestroy(exec));
}

TEST_CASE("a replay is in stream order") {
  Streams s;
  std::vector<int> seen;
  Append before{&seen, 1}, inside{&seen, 2}, after{&seen, 3};
  s.begin();
  CHECK_OK(d.cuLaunchHostFunc(s.a, append, &inside));
  CUgraphExec exec = instantiate(s.end());
  for (int i = 0; i < 30; ++i) {
    CHECK_OK(d.cuLaunchHostFunc(s.b, append, &before));
    CHECK_OK(d.cuGraphLaunch(exec, s.b));
    CHECK_OK(weft::cpu::launch_device(s.b, append, &after));
  }
  CHECK_OK(d.cuStreamSynchronize(s.b));
  for (std::size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == 1 + i % 3);
  CHECK(seen.size() == 90);
  CHECK_OK(d.cuGraphExecDestroy(exec));
}

TEST_CASE("launches of one exec run one after another") {
  Streams s;
  static std::atomic<int> running{0}, overlaps{0}, ran{0};
  running = overlaps = ran = 0;
  s.begin();
  CHECK_OK(weft::cpu::launch_device(s.a, [](void *) { overlaps += ++running != 1; }, nullptr));
  CHECK_OK(d.cuLaunchHostFunc(s.a, [](void *) { ++ran; }, nullptr));
  CHECK_OK(weft::cpu::launch_device(s.a, [](void *) { --running; }, nullptr));
  CUgraphExec exec = instantiate(s.end());
  for (int i = 0; i < 100; ++i)
    for (CUstream stream : {s.a, s.b, s.c}) CHECK_OK(d.cuGraphLaunch(exec, stream));
  CHECK_OK(d.cuCtxSynchronize());
  CHECK(overlaps == 0);
  CHECK(ran == 300);
  CHECK_OK(d.cuGraphExecDestroy(exec));
}

TEST_CASE("an empty graph can be launched") {
  Streams s;
  s.begin();
  CUgraphExec exec = instantiate(s.end());
  for (int i = 0; i < 3; ++i) CHECK_OK(d.cuGraphLaunch(exec, s.a));
  CHECK_OK(d.cuStreamSynchronize(s.a));
  CHECK_OK(d.cuGraphExecDestroy(exec));
}

TEST_CASE("branches wait for each other") {
  Streams s;
  int x[4] = {1, 0, 0, 0};
  s.begin();
  for (int step = 0; step < 20; ++step) {  // x1 = x0 in parallel with x2 = x0, then x3 += x1 + x2
    s.order(s.a, s.b);
    CHECK_OK(d.cuMemcpyAsync(address(&x[1]), address(&x[0]), sizeof(int), s.a));
    CHECK_OK(d.cuMemcpyAsync(address(&x[2]), address(&x[0]), sizeof(int), s.b));
    s.order(s.b, s.a);
    CHECK_OK(d.cuLaunchHostFunc(
        s.a, [](void *p) { static_cast<int *>(p)[3] += static_cast<int *>(p)[1] + static_cast<int *>(p)[2]; }, x));
    CHECK_OK(weft::cpu::launch_device(s.a, [](void *p) { ++static_cast<int *>(p)[0]; }, x));
  }
  CUgraphExec exec = instantiate(s.end());
  CHECK_OK(d.cuGraphLaunch(exec, s.a));
  CHECK_OK(d.cuStreamSynchronize(s.a));
  CHECK(x[3] == 2 * 20 * 21 / 2);
  CHECK_OK(d.cuGraphExecDestroy(exec));
}

TEST_CASE("host functions run one at a time") {
  Streams s;
  static std::atomic<int> running{0}, overlaps{0};
  running = overlaps = 0;
  const auto host = [](void *) {
    overlaps += ++running != 1;
    nap(1);
    --running;
  };
  s.begin();
  s.order(s.a, s.b);
  s.order(s.a, s.c);
  for (int i = 0; i < 3; ++i) {
    CHECK_OK(weft::cpu::launch_device(s.a, [](void *) { nap(2); }, nullptr));
    CHECK_OK(d.cuLaunchHostFunc(s.b, host, nullptr));
    CHECK_OK(d.cuLaunchHostFunc(s.c, host, nullptr));
  }
  s.order(s.b, s.a);
  s.order(s.c, s.a);
  CUgraphExec exec = instantiate(s.end());
  for (int i = 0; i < 5; ++i) CHECK_OK(d.cuGraphLaunch(exec, s.a));
  CHECK_OK(d.cuStreamSynchronize(s.a));
  CHECK(overlaps == 0);
  CHECK_OK(d.cuGraphExecDestroy(exec));
}

TEST_CASE("threads replay graphs of their own") {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      struct Cells {
        long long x = 1, copy = 0, sum = 0;
      } cells;
      CUstream a = new_stream(), b = new_stream();
      CUevent event = new_event();
      const auto order = [event](CUstream from, CUstream to) {
        CHECK_OK(d.cuEventRecord(event, from));
        CHECK_OK(d.cuStreamWaitEvent(to, event, 0));
      };
      CHECK_OK(d.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
      CHECK_OK(d.cuMemcpyAsync(address(&cells.copy), address(&cells.x), sizeof cells.x, a));
      order(a, b);
      CHECK_OK(d.cuLaunchHostFunc(
          b, [](void *p) { static_cast<Cells *>(p)->sum += static_cast<Cells *>(p)->copy; }, &cells));
      CHECK_OK(weft::cpu::launch_device(a, [](void *p) { ++static_cast<Cells *>(p)->x; }, &cells));
      order(b, a);
      CUgraph graph = nullptr;
      CHECK_OK(d.cuStreamEndCapture(a, &graph));
      CUgraphExec exec = instantiate(graph);
      for (int i = 0; i < 100; ++i) {
        CHECK_OK(d.cuGraphLaunch(exec, i % 3 ? a : b));
        order(i % 3 ? a : b, i % 3 ? b : a);
        if (i % 10 == 0) CHECK_OK(d.cuStreamSynchronize(a));
      }
      CHECK_OK(d.cuGraphExecDestroy(exec));
      CHECK_OK(d.cuStreamSynchronize(a));
      CHECK_OK(d.cuStreamSynchronize(b));
      CHECK(cells.sum == 100 * 101 / 2);
      CHECK_OK(d.cuEventDestroy(event));
      CHECK_OK(d.cuStreamDestroy(a));
      CHECK_OK(d.cuStreamDestroy(b));
    });
  }
  for (auto &thread : threads) thread.join();
}

static void wait_for(std::atomic<int> &counter, int value) {
  for (int i = 0; i < 5000 && counter < value; ++i) nap(1);
  CHECK(counter == value);
}

TEST_CASE("an exec destroyed in flight lives until it is done") {
  Streams s;
  static std::atomic<int> destroyed{0}, seen_alive{0};
  destroyed = seen_alive = 0;
  s.begin();
  CUstreamCaptureStatus status;
  CUgraph graph = nullptr;
  CHECK_OK(d.cuStreamGetCaptureInfo(s.a, &status, nullptr, &graph, nullptr, nullptr, nullptr));
  CUuserObject object = nullptr;
  CHECK_OK(d.cuUserObjectCreate(&object, &destroyed, add_one, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  CHECK_OK(d.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  CHECK_OK(weft::cpu::launch_device(s.a, [](void *) { nap(2); }, nullptr));
  CHECK_OK(d.cuLaunchHostFunc(s.a, [](void *) { seen_alive += destroyed == 0; }, nullptr));
  CUgraphExec exec = instantiate(s.end());
  for (int i = 0; i < 5; ++i) CHECK_OK(d.cuGraphLaunch(exec, s.a));
  CHECK_OK(d.cuGraphExecDestroy(exec));
  CHECK(d.cuGraphExecDestroy(exec) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(d.cuGraphLaunch(exec, s.a) == CUDA_ERROR_INVALID_HANDLE);
  CHECK_OK(d.cuStreamSynchronize(s.a));
  CHECK(seen_alive == 5);
  wait_for(destroyed, 1);
}

TEST_CASE("user objects are destroyed once by an internal thread") {
  Streams s;
  static std::atomic<int> destroyed{0}, refused{0}, here{0};
  static std::thread::id caller;
  destroyed = refused = here = 0;
  caller = std::this_thread::get_id();
  const auto destroy = [](void *) {
    CUevent event;
    refused += d.cuEventCreate(&event, 0) == CUDA_ERROR_NOT_PERMITTED;
    here += std::this_thread::get_id() == caller;
    ++destroyed;
  };
  CUuserObject object = nullptr;
  CHECK(d.cuUserObjectCreate(&object, nullptr, destroy, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK_OK(d.cuUserObjectCreate(&object, nullptr, destroy, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  s.begin();
  CUstreamCaptureStatus status;
  CUgraph graph = nullptr;
  CHECK_OK(d.cuStreamGetCaptureInfo(s.a, &status, nullptr, &graph, nullptr, nullptr, nullptr));
  CHECK_OK(d.cuGraphRetainUserObject(graph, object, 1, 0));  // a second reference
  graph = s.end();
  CUgraphExec one = nullptr, two = nullptr;
  CHECK_OK(d.cuGraphInstantiate(&one, graph, 0));
  CHECK_OK(d.cuGraphInstantiate(&two, graph, 0));
  CHECK_OK(d.cuUserObjectRelease(object, 1));
  CHECK_OK(d.cuUserObjectRelease(object, 1));
  CHECK_OK(d.cuGraphExecDestroy(one));
  CHECK_OK(d.cuGraphDestroy(graph));
  CHECK_OK(d.cuCtxSynchronize());
  CHECK(destroyed == 0);
  CHECK_OK(d.cuGraphExecDestroy(two));
  wait_for(destroyed, 1);
  CHECK_OK(d.cuCtxSynchronize());
  CHECK(destroyed == 1);
  CHECK(refused == 1);
  CHECK(here == 0);
  CHECK(d.cuUserObjectRelease(object, 1) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("a failed capture releases its user objects") {
  Streams s;
  static std::atomic<int> destroyed{0};
  destroyed = 0;
  s.begin();
  CUstreamCaptureStatus status;
  CUgraph graph = nullptr;
  CHECK_OK(d.cuStreamGetCaptureInfo(s.a, &status, nullptr, &graph, nullptr, nullptr, nullptr));
  CUuserObject object = nullptr;
  CHECK_OK(d.cuUserObjectCreate(&object, &destroyed, add_one, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  CHECK_OK(d.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  CHECK(d.cuStreamQuery(s.a) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  s.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  wait_for(destroyed, 1);
  CHECK(d.cuGraphDestroy(graph) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("a trace names every node") {
  Streams s;
  s.begin();
  weft::cpu::label_next("host");
  CHECK_OK(d.cuLaunchHostFunc(s.a, [](void *) {}, nullptr));
  weft::cpu::label_next("device");
  CHECK_OK(weft::cpu::launch_device(s.a, [](void *) {}, nullptr));
  CUgraphExec exec = instantiate(s.end());
  CHECK_OK(d.cuGraphLaunch(exec, s.b));
  CHECK_OK(d.cuStreamSynchronize(s.b));
  weft::cpu::trace_start();
  CHECK_OK(d.cuGraphLaunch(exec, s.b));
  weft::cpu::label_next("eager");
  CHECK_OK(d.cuLaunchHostFunc(s.b, [](void *) {}, nullptr));
  CHECK_OK(d.cuStreamSynchronize(s.b));
  const auto slices = weft::cpu::trace_stop();
  CHECK(slices.size() == 3);
  if (slices.size() == 3) {
    CHECK(slices[0].label == "host");
    CHECK(slices[1].label == "device");
    CHECK(slices[2].label == "eager");
    CHECK(slices[0].kind == CU_GRAPH_NODE_TYPE_HOST);
    CHECK(slices[1].kind == CU_GRAPH_NODE_TYPE_KERNEL);
    CHECK(slices[0].stream != slices[2].stream);
    CHECK(slices[0].end_ns <= slices[1].begin_ns);
  }
  CHECK_OK(d.cuGraphExecDestroy(exec));
  CHECK(weft::cpu::trace_stop().empty());
}
