// Streams, events and callbacks outside capture.
#include <utility>

#include "fixture.h"

using namespace weft::test;

TEST(a_stream_keeps_its_order) {
  Streams s;
  std::vector<int> seen;
  std::vector<Append> tasks;
  for (int i = 0; i < 300; ++i) tasks.push_back({&seen, i});
  for (int i = 0; i < 300; ++i) {
    if (i % 2)
      OK(d.cuLaunchHostFunc(s.a, append, &tasks[i]));
    else
      OK(weft::cpu::launch_device(s.a, append, &tasks[i]));
  }
  OK(d.cuStreamSynchronize(s.a));
  EQUAL(seen.size(), 300);
  for (int i = 0; i < 300; ++i) EQUAL(seen[i], i);
  OK(d.cuStreamQuery(s.a));
}

TEST(an_event_orders_two_streams) {
  Streams s;
  for (int round = 0; round < 50; ++round) {
    std::vector<int> seen;
    Append one{&seen, 1}, two{&seen, 2}, three{&seen, 3};
    OK(d.cuLaunchHostFunc(s.a, append, &one));
    s.order(s.a, s.b);
    OK(weft::cpu::launch_device(s.b, append, &two));
    s.order(s.b, s.c);
    OK(d.cuLaunchHostFunc(s.c, append, &three));
    OK(d.cuStreamSynchronize(s.c));
    CHECK((seen == std::vector<int>{1, 2, 3}));
  }
}

TEST(a_wait_means_the_record_at_its_time) {
  Streams s;
  std::vector<int> seen;
  Append one{&seen, 1}, two{&seen, 2};
  OK(d.cuLaunchHostFunc(s.a, append, &one));
  OK(d.cuEventRecord(s.event, s.a));
  OK(d.cuStreamWaitEvent(s.b, s.event, 0));
  // A later record, behind work that waits for b, must not hold b up.
  OK(d.cuLaunchHostFunc(s.b, append, &two));
  CUevent other = new_event();
  OK(d.cuEventRecord(other, s.b));
  OK(d.cuStreamWaitEvent(s.c, other, 0));
  OK(d.cuEventRecord(s.event, s.c));
  OK(d.cuEventSynchronize(s.event));
  CHECK((seen == std::vector<int>{1, 2}));
  OK(d.cuEventDestroy(other));
}

TEST(an_event_without_a_record_is_complete) {
  Streams s;
  OK(d.cuEventQuery(s.event));
  OK(d.cuEventSynchronize(s.event));
  OK(d.cuStreamWaitEvent(s.a, s.event, 0));
  OK(d.cuStreamSynchronize(s.a));
}

TEST(a_query_gets_true_in_the_end) {
  Streams s;
  std::atomic<int> ran{0};
  for (int i = 0; i < 20; ++i) OK(d.cuLaunchHostFunc(s.a, add_one, &ran));
  OK(d.cuEventRecord(s.event, s.a));
  CUresult result = CUDA_ERROR_NOT_READY;
  for (int i = 0; i < 100000 && result == CUDA_ERROR_NOT_READY; ++i) {
    result = d.cuEventQuery(s.event);
    std::this_thread::yield();
  }
  OK(result);
  EQUAL(ran, 20);
}

TEST(an_inline_stream_runs_nothing_before_a_wait) {
  if (schedule() != weft::cpu::Schedule::kInline) return;
  Streams s;
  std::atomic<int> ran{0};
  OK(d.cuLaunchHostFunc(s.a, add_one, &ran));
  nap(20);
  EQUAL(ran, 0);
  OK(d.cuStreamSynchronize(s.a));
  EQUAL(ran, 1);
}

TEST(threads_need_no_waiter) {
  if (schedule() != weft::cpu::Schedule::kThreads) return;
  Streams s;
  std::atomic<int> ran{0};
  OK(d.cuLaunchHostFunc(s.a, add_one, &ran));
  OK(weft::cpu::launch_device(s.a, add_one, &ran));
  for (int i = 0; i < 5000 && ran < 2; ++i) nap(1);
  EQUAL(ran, 2);
}

TEST(a_hundred_thousand_host_functions) {
  Streams s;
  std::atomic<int> ran{0};
  for (int i = 0; i < 100000; ++i) OK(d.cuLaunchHostFunc(s.a, add_one, &ran));
  OK(d.cuStreamSynchronize(s.a));
  EQUAL(ran, 100000);
}

TEST(a_full_queue_runs_what_is_ready) {
  if (schedule() != weft::cpu::Schedule::kInline) return;
  Streams s;
  std::atomic<int> ran{0};
  for (int i = 0; i < 3000; ++i) OK(d.cuLaunchHostFunc(s.a, add_one, &ran));
  CHECK(ran > 1500);
  OK(d.cuStreamSynchronize(s.a));
  EQUAL(ran, 3000);
}

TEST(a_destroyed_stream_finishes_its_work) {
  std::atomic<int> ran{0};
  CUstream stream = new_stream();
  CUevent event = new_event();
  for (int i = 0; i < 100; ++i) OK(d.cuLaunchHostFunc(stream, add_one, &ran));
  OK(d.cuEventRecord(event, stream));
  OK(d.cuStreamDestroy(stream));
  EQUAL(d.cuLaunchHostFunc(stream, add_one, &ran), CUDA_ERROR_INVALID_HANDLE);
  OK(d.cuEventSynchronize(event));
  EQUAL(ran, 100);
  OK(d.cuEventDestroy(event));
}

TEST(a_copy_copies) {
  Streams s;
  int from[3] = {1, 2, 3}, to[3] = {};
  OK(d.cuMemcpyAsync(address(to), address(from), sizeof(from), s.a));
  OK(d.cuMemcpyAsync(0, 0, 0, s.a));
  EQUAL(d.cuMemcpyAsync(0, address(from), 4, s.a), CUDA_ERROR_INVALID_VALUE);
  OK(d.cuStreamSynchronize(s.a));
  EQUAL(to[2], 3);
}

TEST(elapsed_time_is_between_records) {
  Streams s;
  CUevent start = new_event(CU_EVENT_DEFAULT), end = new_event(CU_EVENT_DEFAULT);
  float milliseconds = -1;
  EQUAL(d.cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_INVALID_HANDLE);
  OK(d.cuEventRecord(start, s.a));
  OK(d.cuLaunchHostFunc(s.a, [](void *) { nap(5); }, nullptr));
  OK(d.cuEventRecord(end, s.a));
  OK(d.cuEventSynchronize(end));
  OK(d.cuEventElapsedTime(&milliseconds, start, end));
  CHECK(milliseconds >= 4.9f && milliseconds < 5000);
  EQUAL(d.cuEventElapsedTime(&milliseconds, start, s.event), CUDA_ERROR_INVALID_HANDLE);
  OK(d.cuEventDestroy(start));
  OK(d.cuEventDestroy(end));
}

TEST(the_default_stream_orders_blocking_streams) {
  CUstream blocking = new_stream(CU_STREAM_DEFAULT);
  for (int round = 0; round < 20; ++round) {
    std::vector<int> seen;
    Append one{&seen, 1}, two{&seen, 2}, three{&seen, 3};
    OK(d.cuLaunchHostFunc(blocking, append, &one));
    OK(d.cuLaunchHostFunc(nullptr, append, &two));
    OK(d.cuLaunchHostFunc(blocking, append, &three));
    OK(d.cuStreamSynchronize(blocking));
    CHECK((seen == std::vector<int>{1, 2, 3}));
  }
  OK(d.cuLaunchHostFunc(blocking, [](void *) {}, nullptr));
  OK(d.cuStreamSynchronize(nullptr));
  OK(d.cuStreamQuery(blocking));
  OK(d.cuStreamDestroy(blocking));
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

TEST(a_callback_may_not_call_the_driver) {
  Streams s;
  for (auto *launch : {d.cuLaunchHostFunc, weft::cpu::launch_device}) {
    for (auto &result : results) result = -1;
    OK(launch(s.a, call_the_driver, s.a));
    OK(d.cuStreamSynchronize(s.a));
    for (int i = 0; i < 6; ++i) EQUAL(results[i], CUDA_ERROR_NOT_PERMITTED);
  }
}

TEST(two_threads_synchronise_at_once) {
  Streams s;
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  for (CUstream stream : {s.a, s.b, s.c}) {
    threads.emplace_back([stream, &ran] {
      for (int i = 0; i < 300; ++i) {
        OK(d.cuLaunchHostFunc(stream, add_one, &ran));
        OK(weft::cpu::launch_device(stream, add_one, &ran));
        if (i % 7 == 0) OK(d.cuStreamSynchronize(stream));
        if (i % 11 == 0) OK(d.cuCtxSynchronize());
      }
      OK(d.cuStreamSynchronize(stream));
    });
  }
  for (auto &thread : threads) thread.join();
  EQUAL(ran, 1800);
}

TEST(device_nodes_of_inline_streams_run_one_at_a_time) {
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
    for (CUstream stream : {s.a, s.b, s.c}) OK(weft::cpu::launch_device(stream, work, nullptr));
  std::thread other([&] { OK(d.cuStreamSynchronize(s.b)); });
  OK(d.cuStreamSynchronize(s.a));
  other.join();
  OK(d.cuCtxSynchronize());
  EQUAL(most, 1);
}

TEST(a_costly_host_node_runs_beside_a_device_node) {
  if (schedule() != weft::cpu::Schedule::kInline) return;
  const int processors = std::exchange(weft::cpu::state().processors, 2);  // the driver hands nothing over on one
  Streams s;
  static std::atomic<int> launches{0}, hosts{0};
  launches = hosts = 0;
  s.begin();
  s.order(s.a, s.b);
  // The second time, the device node waits for the host node: they can only be done side by side.
  OK(weft::cpu::launch_device(
      s.a,
      [](void *) {
        if (++launches < 2) return nap(30);
        for (int i = 0; i < 20000 && hosts < 2; ++i) nap(1);
      },
      nullptr));
  OK(d.cuLaunchHostFunc(
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
    OK(d.cuGraphLaunch(exec, s.a));
    OK(d.cuStreamSynchronize(s.a));
  }
  const auto slices = weft::cpu::trace_stop();
  EQUAL(slices.size(), 2);
  if (slices.size() == 2) {
    CHECK(slices[0].kind == CU_GRAPH_NODE_TYPE_HOST);  // it ended first
    CHECK(slices[0].thread != slices[1].thread);
    CHECK(slices[0].end_ns <= slices[1].end_ns);
  }
  weft::cpu::state().processors = processors;
  OK(d.cuGraphExecDestroy(exec));
}

TEST(the_schedule_changes_only_when_idle) {
  if (schedule() == weft::cpu::Schedule::kThreads) return;
  Streams s;
  std::atomic<int> ran{0};
  for (int i = 0; i < 200; ++i) OK(d.cuLaunchHostFunc(s.a, add_one, &ran));
  EQUAL(weft::cpu::set_schedule(schedule(), 1), ran < 200 ? CUDA_ERROR_ILLEGAL_STATE : CUDA_SUCCESS);
  OK(d.cuCtxSynchronize());
  s.begin();
  EQUAL(weft::cpu::set_schedule(schedule(), 1), CUDA_ERROR_ILLEGAL_STATE);
  OK(d.cuGraphDestroy(s.end()));
  OK(weft::cpu::set_schedule(schedule(), 1));
}
