// Replays, the life of graphs, and user objects.
#include "fixture.h"

using namespace weft::test;

TEST(a_replay_repeats_the_capture) {
  Streams s;
  std::vector<int> seen;
  Append one{&seen, 1}, two{&seen, 2}, three{&seen, 3};
  s.begin();
  OK(d.cuLaunchHostFunc(s.a, append, &one));
  s.order(s.a, s.b);
  OK(weft::cpu::launch_device(s.b, append, &two));
  s.order(s.b, s.a);
  OK(d.cuLaunchHostFunc(s.a, append, &three));
  CUgraphExec exec = instantiate(s.end());
  for (int i = 0; i < 100; ++i) OK(d.cuGraphLaunch(exec, s.c));
  OK(d.cuStreamSynchronize(s.c));
  EQUAL(seen.size(), 300);
  for (std::size_t i = 0; i < seen.size(); ++i) EQUAL(seen[i], 1 + i % 3);
  OK(d.cuGraphExecDestroy(exec));
}

TEST(a_replay_is_in_stream_order) {
  Streams s;
  std::vector<int> seen;
  Append before{&seen, 1}, inside{&seen, 2}, after{&seen, 3};
  s.begin();
  OK(d.cuLaunchHostFunc(s.a, append, &inside));
  CUgraphExec exec = instantiate(s.end());
  for (int i = 0; i < 30; ++i) {
    OK(d.cuLaunchHostFunc(s.b, append, &before));
    OK(d.cuGraphLaunch(exec, s.b));
    OK(weft::cpu::launch_device(s.b, append, &after));
  }
  OK(d.cuStreamSynchronize(s.b));
  for (std::size_t i = 0; i < seen.size(); ++i) EQUAL(seen[i], 1 + i % 3);
  EQUAL(seen.size(), 90);
  OK(d.cuGraphExecDestroy(exec));
}

TEST(launches_of_one_exec_run_one_after_another) {
  Streams s;
  static std::atomic<int> running{0}, overlaps{0}, ran{0};
  running = overlaps = ran = 0;
  s.begin();
  OK(weft::cpu::launch_device(s.a, [](void *) { overlaps += ++running != 1; }, nullptr));
  OK(d.cuLaunchHostFunc(s.a, [](void *) { ++ran; }, nullptr));
  OK(weft::cpu::launch_device(s.a, [](void *) { --running; }, nullptr));
  CUgraphExec exec = instantiate(s.end());
  for (int i = 0; i < 100; ++i)
    for (CUstream stream : {s.a, s.b, s.c}) OK(d.cuGraphLaunch(exec, stream));
  OK(d.cuCtxSynchronize());
  EQUAL(overlaps, 0);
  EQUAL(ran, 300);
  OK(d.cuGraphExecDestroy(exec));
}

TEST(an_empty_graph_can_be_launched) {
  Streams s;
  s.begin();
  CUgraphExec exec = instantiate(s.end());
  for (int i = 0; i < 3; ++i) OK(d.cuGraphLaunch(exec, s.a));
  OK(d.cuStreamSynchronize(s.a));
  OK(d.cuGraphExecDestroy(exec));
}

TEST(branches_wait_for_each_other) {
  Streams s;
  int x[4] = {1, 0, 0, 0};
  s.begin();
  for (int step = 0; step < 20; ++step) {  // x1 = x0 beside x2 = x0, then x3 += x1 + x2
    s.order(s.a, s.b);
    OK(d.cuMemcpyAsync(address(&x[1]), address(&x[0]), sizeof(int), s.a));
    OK(d.cuMemcpyAsync(address(&x[2]), address(&x[0]), sizeof(int), s.b));
    s.order(s.b, s.a);
    OK(d.cuLaunchHostFunc(
        s.a, [](void *p) { static_cast<int *>(p)[3] += static_cast<int *>(p)[1] + static_cast<int *>(p)[2]; }, x));
    OK(weft::cpu::launch_device(s.a, [](void *p) { ++static_cast<int *>(p)[0]; }, x));
  }
  CUgraphExec exec = instantiate(s.end());
  OK(d.cuGraphLaunch(exec, s.a));
  OK(d.cuStreamSynchronize(s.a));
  EQUAL(x[3], 2 * 20 * 21 / 2);
  OK(d.cuGraphExecDestroy(exec));
}

TEST(host_functions_run_one_at_a_time) {
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
    OK(weft::cpu::launch_device(s.a, [](void *) { nap(2); }, nullptr));
    OK(d.cuLaunchHostFunc(s.b, host, nullptr));
    OK(d.cuLaunchHostFunc(s.c, host, nullptr));
  }
  s.order(s.b, s.a);
  s.order(s.c, s.a);
  CUgraphExec exec = instantiate(s.end());
  for (int i = 0; i < 5; ++i) OK(d.cuGraphLaunch(exec, s.a));
  OK(d.cuStreamSynchronize(s.a));
  EQUAL(overlaps, 0);
  OK(d.cuGraphExecDestroy(exec));
}

TEST(threads_replay_graphs_of_their_own) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      struct Cells {
        long long x = 1, copy = 0, sum = 0;
      } cells;
      CUstream a = new_stream(), b = new_stream();
      CUevent event = new_event();
      const auto order = [event](CUstream from, CUstream to) {
        OK(d.cuEventRecord(event, from));
        OK(d.cuStreamWaitEvent(to, event, 0));
      };
      OK(d.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
      OK(d.cuMemcpyAsync(address(&cells.copy), address(&cells.x), sizeof cells.x, a));
      order(a, b);
      OK(d.cuLaunchHostFunc(b, [](void *p) { static_cast<Cells *>(p)->sum += static_cast<Cells *>(p)->copy; }, &cells));
      OK(weft::cpu::launch_device(a, [](void *p) { ++static_cast<Cells *>(p)->x; }, &cells));
      order(b, a);
      CUgraph graph = nullptr;
      OK(d.cuStreamEndCapture(a, &graph));
      CUgraphExec exec = instantiate(graph);
      for (int i = 0; i < 100; ++i) {
        OK(d.cuGraphLaunch(exec, i % 3 ? a : b));
        order(i % 3 ? a : b, i % 3 ? b : a);
        if (i % 10 == 0) OK(d.cuStreamSynchronize(a));
      }
      OK(d.cuGraphExecDestroy(exec));
      OK(d.cuStreamSynchronize(a));
      OK(d.cuStreamSynchronize(b));
      EQUAL(cells.sum, 100 * 101 / 2);
      OK(d.cuEventDestroy(event));
      OK(d.cuStreamDestroy(a));
      OK(d.cuStreamDestroy(b));
    });
  }
  for (auto &thread : threads) thread.join();
}

static void wait_for(std::atomic<int> &counter, int value) {
  for (int i = 0; i < 5000 && counter < value; ++i) nap(1);
  EQUAL(counter, value);
}

TEST(an_exec_destroyed_in_flight_lives_until_it_is_done) {
  Streams s;
  static std::atomic<int> destroyed{0}, seen_alive{0};
  destroyed = seen_alive = 0;
  s.begin();
  CUstreamCaptureStatus status;
  CUgraph graph = nullptr;
  OK(d.cuStreamGetCaptureInfo(s.a, &status, nullptr, &graph, nullptr, nullptr, nullptr));
  CUuserObject object = nullptr;
  OK(d.cuUserObjectCreate(&object, &destroyed, add_one, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  OK(d.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  OK(weft::cpu::launch_device(s.a, [](void *) { nap(2); }, nullptr));
  OK(d.cuLaunchHostFunc(s.a, [](void *) { seen_alive += destroyed == 0; }, nullptr));
  CUgraphExec exec = instantiate(s.end());
  for (int i = 0; i < 5; ++i) OK(d.cuGraphLaunch(exec, s.a));
  OK(d.cuGraphExecDestroy(exec));
  EQUAL(d.cuGraphExecDestroy(exec), CUDA_ERROR_INVALID_HANDLE);
  EQUAL(d.cuGraphLaunch(exec, s.a), CUDA_ERROR_INVALID_HANDLE);
  OK(d.cuStreamSynchronize(s.a));
  EQUAL(seen_alive, 5);
  wait_for(destroyed, 1);
}

TEST(user_objects_are_destroyed_once_by_an_internal_thread) {
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
  EQUAL(d.cuUserObjectCreate(&object, nullptr, destroy, 1, 0), CUDA_ERROR_INVALID_VALUE);
  OK(d.cuUserObjectCreate(&object, nullptr, destroy, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  s.begin();
  CUstreamCaptureStatus status;
  CUgraph graph = nullptr;
  OK(d.cuStreamGetCaptureInfo(s.a, &status, nullptr, &graph, nullptr, nullptr, nullptr));
  OK(d.cuGraphRetainUserObject(graph, object, 1, 0));  // a reference of its own
  graph = s.end();
  CUgraphExec one = nullptr, two = nullptr;
  OK(d.cuGraphInstantiate(&one, graph, 0));
  OK(d.cuGraphInstantiate(&two, graph, 0));
  OK(d.cuUserObjectRelease(object, 1));
  OK(d.cuUserObjectRelease(object, 1));
  OK(d.cuGraphExecDestroy(one));
  OK(d.cuGraphDestroy(graph));
  OK(d.cuCtxSynchronize());
  EQUAL(destroyed, 0);
  OK(d.cuGraphExecDestroy(two));
  wait_for(destroyed, 1);
  OK(d.cuCtxSynchronize());
  EQUAL(destroyed, 1);
  EQUAL(refused, 1);
  EQUAL(here, 0);
  EQUAL(d.cuUserObjectRelease(object, 1), CUDA_ERROR_INVALID_HANDLE);
}

TEST(a_failed_capture_releases_its_user_objects) {
  Streams s;
  static std::atomic<int> destroyed{0};
  destroyed = 0;
  s.begin();
  CUstreamCaptureStatus status;
  CUgraph graph = nullptr;
  OK(d.cuStreamGetCaptureInfo(s.a, &status, nullptr, &graph, nullptr, nullptr, nullptr));
  CUuserObject object = nullptr;
  OK(d.cuUserObjectCreate(&object, &destroyed, add_one, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  OK(d.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  EQUAL(d.cuStreamQuery(s.a), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  s.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  wait_for(destroyed, 1);
  EQUAL(d.cuGraphDestroy(graph), CUDA_ERROR_INVALID_HANDLE);
}

TEST(a_trace_names_every_node) {
  Streams s;
  s.begin();
  weft::cpu::label_next("host");
  OK(d.cuLaunchHostFunc(s.a, [](void *) {}, nullptr));
  weft::cpu::label_next("device");
  OK(weft::cpu::launch_device(s.a, [](void *) {}, nullptr));
  CUgraphExec exec = instantiate(s.end());
  OK(d.cuGraphLaunch(exec, s.b));
  OK(d.cuStreamSynchronize(s.b));
  weft::cpu::trace_start();
  OK(d.cuGraphLaunch(exec, s.b));
  weft::cpu::label_next("eager");
  OK(d.cuLaunchHostFunc(s.b, [](void *) {}, nullptr));
  OK(d.cuStreamSynchronize(s.b));
  const auto slices = weft::cpu::trace_stop();
  EQUAL(slices.size(), 3);
  if (slices.size() == 3) {
    CHECK(slices[0].label == "host" && slices[1].label == "device" && slices[2].label == "eager");
    EQUAL(slices[0].kind, CU_GRAPH_NODE_TYPE_HOST);
    EQUAL(slices[1].kind, CU_GRAPH_NODE_TYPE_KERNEL);
    CHECK(slices[0].stream != slices[2].stream);
    CHECK(slices[0].end_ns <= slices[1].begin_ns);
  }
  OK(d.cuGraphExecDestroy(exec));
  CHECK(weft::cpu::trace_stop().empty());
}
