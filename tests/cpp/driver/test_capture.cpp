// Stream capture: the recorded nodes and dependencies, and the calls that a capture refuses.
#include <algorithm>
#include <cstring>

#include "fixture.h"

using namespace weft::test;

static void nothing(void *) {}

TEST_CASE("nothing runs in capture") {
  Streams s;
  std::atomic<int> ran{0};
  s.begin();
  CHECK(s.status(s.a) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK_OK(d.cuLaunchHostFunc(s.a, add_one, &ran));
  CHECK_OK(weft::cpu::launch_device(s.a, add_one, &ran));
  nap(10);
  CUgraph graph = s.end();
  CHECK(s.status(s.a) == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK_OK(d.cuCtxSynchronize());
  CHECK(ran == 0);
  CHECK_OK(d.cuGraphDestroy(graph));
}

TEST_CASE("nodes and edges are the true dependencies") {
  Streams s;
  int from = 0, to = 0;
  s.begin();
  weft::cpu::label_next("first");
  CHECK_OK(d.cuLaunchHostFunc(s.a, nothing, nullptr));
  s.order(s.a, s.b);
  CHECK_OK(weft::cpu::launch_device(s.a, nothing, nullptr));
  weft::cpu::label_next("beside");
  CHECK_OK(d.cuMemcpyAsync(address(&to), address(&from), sizeof(int), s.b));
  s.order(s.b, s.a);
  CHECK_OK(d.cuLaunchHostFunc(s.a, nothing, nullptr));
  CUgraph graph = s.end();
  std::size_t count = 0, edges = 0;
  CHECK_OK(d.cuGraphGetNodes(graph, nullptr, &count));
  CHECK(count == 4);
  CUgraphNode nodes[5];
  count = 5;
  CHECK_OK(d.cuGraphGetNodes(graph, nodes, &count));
  CHECK(count == 4);
  CHECK(nodes[4] == nullptr);
  const CUgraphNodeType kinds[] = {CU_GRAPH_NODE_TYPE_HOST, CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEMCPY,
                                   CU_GRAPH_NODE_TYPE_HOST};
  const char *labels[] = {"first", "", "beside", ""};
  for (int i = 0; i < 4; ++i) {
    CUgraphNodeType kind;
    CHECK_OK(d.cuGraphNodeGetType(nodes[i], &kind));
    CHECK(kind == kinds[i]);
    CHECK(std::strcmp(weft::cpu::node_label(nodes[i]), labels[i]) == 0);
  }
  CHECK_OK(d.cuGraphGetEdges(graph, nullptr, nullptr, &edges));
  CHECK(edges == 4);
  CUgraphNode sources[4], targets[4];
  CHECK_OK(d.cuGraphGetEdges(graph, sources, targets, &edges));
  std::vector<std::pair<int, int>> found;
  for (int i = 0; i < 4; ++i)
    found.emplace_back(std::find(nodes, nodes + 4, sources[i]) - nodes,
                       std::find(nodes, nodes + 4, targets[i]) - nodes);
  std::sort(found.begin(), found.end());
  CHECK((found == std::vector<std::pair<int, int>>{{0, 1}, {0, 2}, {1, 3}, {2, 3}}));
  CHECK_OK(d.cuGraphDestroy(graph));
  CUgraphNodeType kind;
  CHECK(d.cuGraphNodeGetType(nodes[0], &kind) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("capture info names the graph") {
  Streams s;
  CUstreamCaptureStatus status;
  cuuint64_t id = 0, side_id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode *dependencies = nullptr;
  std::size_t count = 9;
  CHECK_OK(d.cuStreamGetCaptureInfo(s.a, &status, nullptr, nullptr, nullptr, nullptr, nullptr));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  s.begin();
  s.order(s.a, s.b);
  CHECK_OK(d.cuStreamGetCaptureInfo(s.a, &status, &id, &graph, &dependencies, nullptr, &count));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK(count == 0);
  CHECK_OK(d.cuLaunchHostFunc(s.a, nothing, nullptr));
  CHECK_OK(d.cuStreamGetCaptureInfo(s.a, &status, &id, &graph, &dependencies, nullptr, &count));
  CHECK(count == 1);
  CUgraphNodeType kind;
  CHECK_OK(d.cuGraphNodeGetType(dependencies[0], &kind));
  CHECK_OK(d.cuStreamGetCaptureInfo(s.b, &status, &side_id, nullptr, nullptr, nullptr, nullptr));
  CHECK(id == side_id);
  CHECK(d.cuGraphDestroy(graph) == CUDA_ERROR_INVALID_VALUE);
  CHECK(graph == s.end());
  CHECK_OK(d.cuGraphDestroy(graph));
}

TEST_CASE("joined side streams are out of capture") {
  Streams s;
  std::atomic<int> ran{0};
  s.begin();
  s.order(s.a, s.b);
  CHECK_OK(d.cuLaunchHostFunc(s.b, nothing, nullptr));
  s.order(s.b, s.a);
  CUgraph graph = s.end();
  CHECK(s.status(s.b) == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK_OK(d.cuLaunchHostFunc(s.b, add_one, &ran));
  CHECK_OK(d.cuStreamSynchronize(s.b));
  CHECK(ran == 1);
  CHECK_OK(d.cuGraphDestroy(graph));
}

TEST_CASE("unjoined forks fail 904") {
  Streams s;
  s.begin();
  s.order(s.a, s.b);
  CHECK_OK(d.cuLaunchHostFunc(s.b, nothing, nullptr));
  s.end_fails(CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  CHECK_OK(d.cuStreamSynchronize(s.b));

  s.begin();  // the fork was joined, but got work afterwards
  s.order(s.a, s.b);
  CHECK_OK(d.cuLaunchHostFunc(s.b, nothing, nullptr));
  s.order(s.b, s.a);
  CHECK_OK(d.cuLaunchHostFunc(s.b, nothing, nullptr));
  s.end_fails(CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
}

TEST_CASE("begin and end must match") {
  Streams s;
  CUgraph graph = nullptr;
  CHECK(d.cuStreamEndCapture(s.a, &graph) == CUDA_ERROR_ILLEGAL_STATE);
  CHECK(d.cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(d.cuStreamBeginCapture(s.a, static_cast<CUstreamCaptureMode>(7)) == CUDA_ERROR_INVALID_VALUE);
  s.begin();
  CHECK(d.cuStreamBeginCapture(s.a, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_ERROR_ILLEGAL_STATE);
  s.order(s.a, s.b);
  CHECK(d.cuStreamEndCapture(s.b, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  CHECK(graph == nullptr);
  CHECK_OK(d.cuGraphDestroy(s.end()));
}

TEST_CASE("another thread may end only a relaxed capture") {
  Streams s;
  CUgraph graph = nullptr;
  for (auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    s.begin(mode);
    std::thread([&] { CHECK(d.cuStreamEndCapture(s.a, &graph) == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD); }).join();
    CHECK_OK(d.cuGraphDestroy(s.end()));
  }
  s.begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  std::thread([&] { CHECK_OK(d.cuStreamEndCapture(s.a, &graph)); }).join();
  CHECK_OK(d.cuGraphDestroy(graph));
}

// Checks that `call` fails with `code` and invalidates the capture of s.a.
template <class Call>
static void refused(Streams &s, CUresult code, Call call) {
  s.begin();
  CHECK_OK(d.cuLaunchHostFunc(s.a, nothing, nullptr));
  CHECK(call() == code);
  CHECK(s.status(s.a) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CHECK(d.cuLaunchHostFunc(s.a, nothing, nullptr) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(d.cuEventRecord(s.event, s.a) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(d.cuStreamWaitEvent(s.a, s.event, 0) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  s.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK_OK(d.cuStreamSynchronize(s.a));
}

TEST_CASE("illegal calls invalidate the capture") {
  Streams s;
  CUevent outside = new_event();
  CHECK_OK(d.cuEventRecord(outside, s.c));
  refused(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return d.cuStreamSynchronize(s.a); });
  refused(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return d.cuStreamQuery(s.a); });
  refused(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return d.cuStreamDestroy(s.a); });
  refused(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return d.cuCtxSynchronize(); });
  refused(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return d.cuEventQuery(outside); });
  refused(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return d.cuEventSynchronize(outside); });
  refused(s, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, [&] { return d.cuStreamWaitEvent(s.a, outside, 0); });
  for (auto *call : {d.cuEventQuery, d.cuEventSynchronize}) {
    refused(s, CUDA_ERROR_CAPTURED_EVENT, [&] {
      CHECK_OK(d.cuEventRecord(s.event, s.a));
      return call(s.event);
    });
  }
  CHECK_OK(d.cuEventDestroy(outside));
}

TEST_CASE("a graph launch is not captured") {
  Streams s;
  s.begin();
  CUgraphExec exec = instantiate(s.end());
  refused(s, CUDA_ERROR_NOT_SUPPORTED, [&] { return d.cuGraphLaunch(exec, s.a); });
  CHECK_OK(d.cuGraphExecDestroy(exec));
}

TEST_CASE("two captures do not merge") {
  Streams s;
  CUgraph graph = nullptr;
  s.begin();
  CHECK_OK(d.cuStreamBeginCapture(s.b, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CHECK_OK(d.cuEventRecord(s.event, s.b));
  CHECK(d.cuStreamWaitEvent(s.a, s.event, 0) == CUDA_ERROR_STREAM_CAPTURE_MERGE);
  CHECK(d.cuStreamEndCapture(s.b, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  s.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("an event of an ended capture can not be waited for") {
  Streams s;
  s.begin();
  CHECK_OK(d.cuEventRecord(s.event, s.a));
  CHECK_OK(d.cuGraphDestroy(s.end()));
  CHECK(d.cuStreamWaitEvent(s.b, s.event, 0) == CUDA_ERROR_CAPTURED_EVENT);
  CHECK(d.cuEventQuery(s.event) == CUDA_ERROR_CAPTURED_EVENT);
  CHECK(d.cuEventSynchronize(s.event) == CUDA_ERROR_CAPTURED_EVENT);
  refused(s, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, [&] { return d.cuStreamWaitEvent(s.a, s.event, 0); });
  CHECK_OK(d.cuEventRecord(s.event, s.a));  // a record outside capture makes it an ordinary event again
  CHECK_OK(d.cuEventSynchronize(s.event));
}

TEST_CASE("other threads are held back only by a global capture") {
  Streams s;
  CUevent outside = new_event();
  s.begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  std::thread([&] { CHECK_OK(d.cuEventQuery(outside)); }).join();
  CHECK_OK(d.cuGraphDestroy(s.end()));
  s.begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CHECK_OK(d.cuEventQuery(outside));
  CHECK_OK(d.cuGraphDestroy(s.end()));
  s.begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  std::thread([&] { CHECK(d.cuEventQuery(outside) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }).join();
  s.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  s.begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);  // no thread may wait for the captured stream's context
  std::thread([] { CHECK(d.cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }).join();
  s.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK_OK(d.cuEventDestroy(outside));
}

TEST_CASE("other streams run while one is captured") {
  Streams s;
  std::atomic<int> ran{0};
  s.begin();
  CHECK_OK(d.cuLaunchHostFunc(s.b, add_one, &ran));
  CHECK_OK(d.cuStreamSynchronize(s.b));
  CHECK(ran == 1);
  CHECK_OK(d.cuGraphDestroy(s.end()));
}

TEST_CASE("the default stream is refused beside a blocking capture") {
  CUstream blocking = new_stream(CU_STREAM_DEFAULT);
  CUgraph graph = nullptr;
  CUstreamCaptureStatus status;
  CHECK_OK(d.cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CHECK(d.cuStreamIsCapturing(nullptr, &status) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CHECK_OK(d.cuLaunchHostFunc(blocking, nothing, nullptr));
  CHECK(d.cuLaunchHostFunc(nullptr, nothing, nullptr) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CHECK(d.cuStreamEndCapture(blocking, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK_OK(d.cuStreamDestroy(blocking));

  Streams s;
  s.begin();
  CHECK_OK(d.cuLaunchHostFunc(nullptr, nothing, nullptr));
  CHECK_OK(d.cuStreamSynchronize(nullptr));
  CHECK_OK(d.cuEventRecord(s.event, s.a));
  CHECK(d.cuStreamWaitEvent(nullptr, s.event, 0) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  s.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}
