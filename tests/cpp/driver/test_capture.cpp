// What capture records, and what it refuses.
#include <algorithm>

#include "fixture.h"

using namespace weft::test;

static void nothing(void *) {}

TEST(nothing_runs_in_capture) {
  Streams s;
  std::atomic<int> ran{0};
  s.begin();
  EQUAL(s.status(s.a), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(d.cuLaunchHostFunc(s.a, add_one, &ran));
  OK(weft::cpu::launch_device(s.a, add_one, &ran));
  nap(10);
  CUgraph graph = s.end();
  EQUAL(s.status(s.a), CU_STREAM_CAPTURE_STATUS_NONE);
  OK(d.cuCtxSynchronize());
  EQUAL(ran, 0);
  OK(d.cuGraphDestroy(graph));
}

TEST(nodes_and_edges_are_the_true_dependencies) {
  Streams s;
  int from = 0, to = 0;
  s.begin();
  weft::cpu::label_next("first");
  OK(d.cuLaunchHostFunc(s.a, nothing, nullptr));
  s.order(s.a, s.b);
  OK(weft::cpu::launch_device(s.a, nothing, nullptr));
  weft::cpu::label_next("beside");
  OK(d.cuMemcpyAsync(address(&to), address(&from), sizeof(int), s.b));
  s.order(s.b, s.a);
  OK(d.cuLaunchHostFunc(s.a, nothing, nullptr));
  CUgraph graph = s.end();
  std::size_t count = 0, edges = 0;
  OK(d.cuGraphGetNodes(graph, nullptr, &count));
  EQUAL(count, 4);
  CUgraphNode nodes[5];
  count = 5;
  OK(d.cuGraphGetNodes(graph, nodes, &count));
  EQUAL(count, 4);
  CHECK(nodes[4] == nullptr);
  const CUgraphNodeType kinds[] = {CU_GRAPH_NODE_TYPE_HOST, CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEMCPY,
                                   CU_GRAPH_NODE_TYPE_HOST};
  const char *labels[] = {"first", "", "beside", ""};
  for (int i = 0; i < 4; ++i) {
    CUgraphNodeType kind;
    OK(d.cuGraphNodeGetType(nodes[i], &kind));
    EQUAL(kind, kinds[i]);
    EQUAL(std::strcmp(weft::cpu::node_label(nodes[i]), labels[i]), 0);
  }
  OK(d.cuGraphGetEdges(graph, nullptr, nullptr, &edges));
  EQUAL(edges, 4);
  CUgraphNode sources[4], targets[4];
  OK(d.cuGraphGetEdges(graph, sources, targets, &edges));
  std::vector<std::pair<int, int>> found;
  for (int i = 0; i < 4; ++i)
    found.emplace_back(std::find(nodes, nodes + 4, sources[i]) - nodes,
                       std::find(nodes, nodes + 4, targets[i]) - nodes);
  std::sort(found.begin(), found.end());
  CHECK((found == std::vector<std::pair<int, int>>{{0, 1}, {0, 2}, {1, 3}, {2, 3}}));
  OK(d.cuGraphDestroy(graph));
  CUgraphNodeType kind;
  EQUAL(d.cuGraphNodeGetType(nodes[0], &kind), CUDA_ERROR_INVALID_HANDLE);
}

TEST(capture_info_names_the_graph) {
  Streams s;
  CUstreamCaptureStatus status;
  cuuint64_t id = 0, side_id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode *dependencies = nullptr;
  std::size_t count = 9;
  OK(d.cuStreamGetCaptureInfo(s.a, &status, nullptr, nullptr, nullptr, nullptr, nullptr));
  EQUAL(status, CU_STREAM_CAPTURE_STATUS_NONE);
  s.begin();
  s.order(s.a, s.b);
  OK(d.cuStreamGetCaptureInfo(s.a, &status, &id, &graph, &dependencies, nullptr, &count));
  EQUAL(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EQUAL(count, 0);
  OK(d.cuLaunchHostFunc(s.a, nothing, nullptr));
  OK(d.cuStreamGetCaptureInfo(s.a, &status, &id, &graph, &dependencies, nullptr, &count));
  EQUAL(count, 1);
  CUgraphNodeType kind;
  OK(d.cuGraphNodeGetType(dependencies[0], &kind));
  OK(d.cuStreamGetCaptureInfo(s.b, &status, &side_id, nullptr, nullptr, nullptr, nullptr));
  EQUAL(id, side_id);
  EQUAL(d.cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
  CHECK(graph == s.end());
  OK(d.cuGraphDestroy(graph));
}

TEST(joined_side_streams_are_out_of_capture) {
  Streams s;
  std::atomic<int> ran{0};
  s.begin();
  s.order(s.a, s.b);
  OK(d.cuLaunchHostFunc(s.b, nothing, nullptr));
  s.order(s.b, s.a);
  CUgraph graph = s.end();
  EQUAL(s.status(s.b), CU_STREAM_CAPTURE_STATUS_NONE);
  OK(d.cuLaunchHostFunc(s.b, add_one, &ran));
  OK(d.cuStreamSynchronize(s.b));
  EQUAL(ran, 1);
  OK(d.cuGraphDestroy(graph));
}

TEST(unjoined_forks_fail_904) {
  Streams s;
  s.begin();
  s.order(s.a, s.b);
  OK(d.cuLaunchHostFunc(s.b, nothing, nullptr));
  s.end_fails(CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  OK(d.cuStreamSynchronize(s.b));

  s.begin();  // joined once, then forked on
  s.order(s.a, s.b);
  OK(d.cuLaunchHostFunc(s.b, nothing, nullptr));
  s.order(s.b, s.a);
  OK(d.cuLaunchHostFunc(s.b, nothing, nullptr));
  s.end_fails(CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
}

TEST(begin_and_end_must_match) {
  Streams s;
  CUgraph graph = nullptr;
  EQUAL(d.cuStreamEndCapture(s.a, &graph), CUDA_ERROR_ILLEGAL_STATE);
  EQUAL(d.cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EQUAL(d.cuStreamBeginCapture(s.a, static_cast<CUstreamCaptureMode>(7)), CUDA_ERROR_INVALID_VALUE);
  s.begin();
  EQUAL(d.cuStreamBeginCapture(s.a, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_ERROR_ILLEGAL_STATE);
  s.order(s.a, s.b);
  EQUAL(d.cuStreamEndCapture(s.b, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  CHECK(graph == nullptr);
  OK(d.cuGraphDestroy(s.end()));
}

TEST(another_thread_may_end_only_a_relaxed_capture) {
  Streams s;
  CUgraph graph = nullptr;
  for (auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    s.begin(mode);
    std::thread([&] { EQUAL(d.cuStreamEndCapture(s.a, &graph), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD); }).join();
    OK(d.cuGraphDestroy(s.end()));
  }
  s.begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  std::thread([&] { OK(d.cuStreamEndCapture(s.a, &graph)); }).join();
  OK(d.cuGraphDestroy(graph));
}

// `call` is refused with `code` and invalidates the capture of s.a.
template <class Call>
static void refused(Streams &s, CUresult code, Call call) {
  s.begin();
  OK(d.cuLaunchHostFunc(s.a, nothing, nullptr));
  EQUAL(call(), code);
  EQUAL(s.status(s.a), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EQUAL(d.cuLaunchHostFunc(s.a, nothing, nullptr), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EQUAL(d.cuEventRecord(s.event, s.a), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EQUAL(d.cuStreamWaitEvent(s.a, s.event, 0), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  s.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(d.cuStreamSynchronize(s.a));
}

TEST(illegal_calls_invalidate_the_capture) {
  Streams s;
  CUevent outside = new_event();
  OK(d.cuEventRecord(outside, s.c));
  refused(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return d.cuStreamSynchronize(s.a); });
  refused(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return d.cuStreamQuery(s.a); });
  refused(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return d.cuStreamDestroy(s.a); });
  refused(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return d.cuCtxSynchronize(); });
  refused(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return d.cuEventQuery(outside); });
  refused(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return d.cuEventSynchronize(outside); });
  refused(s, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, [&] { return d.cuStreamWaitEvent(s.a, outside, 0); });
  for (auto *call : {d.cuEventQuery, d.cuEventSynchronize}) {
    refused(s, CUDA_ERROR_CAPTURED_EVENT, [&] {
      OK(d.cuEventRecord(s.event, s.a));
      return call(s.event);
    });
  }
  OK(d.cuEventDestroy(outside));
}

TEST(a_graph_launch_is_not_captured) {
  Streams s;
  s.begin();
  CUgraphExec exec = instantiate(s.end());
  refused(s, CUDA_ERROR_NOT_SUPPORTED, [&] { return d.cuGraphLaunch(exec, s.a); });
  OK(d.cuGraphExecDestroy(exec));
}

TEST(two_captures_do_not_merge) {
  Streams s;
  CUgraph graph = nullptr;
  s.begin();
  OK(d.cuStreamBeginCapture(s.b, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(d.cuEventRecord(s.event, s.b));
  EQUAL(d.cuStreamWaitEvent(s.a, s.event, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
  EQUAL(d.cuStreamEndCapture(s.b, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  s.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST(an_event_of_an_ended_capture_can_not_be_waited_for) {
  Streams s;
  s.begin();
  OK(d.cuEventRecord(s.event, s.a));
  OK(d.cuGraphDestroy(s.end()));
  EQUAL(d.cuStreamWaitEvent(s.b, s.event, 0), CUDA_ERROR_CAPTURED_EVENT);
  EQUAL(d.cuEventQuery(s.event), CUDA_ERROR_CAPTURED_EVENT);
  EQUAL(d.cuEventSynchronize(s.event), CUDA_ERROR_CAPTURED_EVENT);
  refused(s, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, [&] { return d.cuStreamWaitEvent(s.a, s.event, 0); });
  OK(d.cuEventRecord(s.event, s.a));  // a record outside makes it an ordinary event again
  OK(d.cuEventSynchronize(s.event));
}

TEST(other_threads_are_held_back_only_by_a_global_capture) {
  Streams s;
  CUevent outside = new_event();
  s.begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  std::thread([&] { OK(d.cuEventQuery(outside)); }).join();
  OK(d.cuGraphDestroy(s.end()));
  s.begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  OK(d.cuEventQuery(outside));
  OK(d.cuGraphDestroy(s.end()));
  s.begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  std::thread([&] { EQUAL(d.cuEventQuery(outside), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }).join();
  s.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  s.begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);  // a context holds the captured stream, whoever waits for it
  std::thread([] { EQUAL(d.cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }).join();
  s.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(d.cuEventDestroy(outside));
}

TEST(other_streams_run_while_one_is_captured) {
  Streams s;
  std::atomic<int> ran{0};
  s.begin();
  OK(d.cuLaunchHostFunc(s.b, add_one, &ran));
  OK(d.cuStreamSynchronize(s.b));
  EQUAL(ran, 1);
  OK(d.cuGraphDestroy(s.end()));
}

TEST(the_default_stream_is_refused_beside_a_blocking_capture) {
  CUstream blocking = new_stream(CU_STREAM_DEFAULT);
  CUgraph graph = nullptr;
  CUstreamCaptureStatus status;
  OK(d.cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  EQUAL(d.cuStreamIsCapturing(nullptr, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  OK(d.cuLaunchHostFunc(blocking, nothing, nullptr));
  EQUAL(d.cuLaunchHostFunc(nullptr, nothing, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EQUAL(d.cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(d.cuStreamDestroy(blocking));

  Streams s;
  s.begin();
  OK(d.cuLaunchHostFunc(nullptr, nothing, nullptr));
  OK(d.cuStreamSynchronize(nullptr));
  OK(d.cuEventRecord(s.event, s.a));
  EQUAL(d.cuStreamWaitEvent(nullptr, s.event, 0), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  s.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}
