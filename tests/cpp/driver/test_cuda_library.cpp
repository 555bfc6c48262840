// Checks the CUDA driver table on the libcuda.so.1 that the loader finds. Either the table works, or the reason for the
// failure contains the text given on the command line.
#include <cstdio>
#include <cstring>
#include <thread>

#include "driver/context.h"
#include "driver/driver.h"
#include "driver/polling/polled.h"

using namespace weft::cu;

static int failed(const char *what, const char *detail) {
  std::fprintf(stderr, "%s: %s\n", what, detail);
  return 1;
}

// Returns the calling thread's current context, or null.
static CUcontext current(const Driver &d) {
  CUcontext context = nullptr;
  return d.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : nullptr;
}

// Returns the context that a new thread gets after it selects `device`.
static CUcontext context_of_a_thread(const Driver &d, int device) {
  CUcontext context = nullptr;
  std::thread([&] {
    CUevent event;
    weft::use_device(device);
    if (d.cuEventCreate(&event, 0) != CUDA_ERROR_INVALID_CONTEXT) return;
    if (weft::ensure_context(d) == CUDA_SUCCESS && d.cuEventCreate(&event, 0) == CUDA_SUCCESS) context = current(d);
  }).join();
  return context;
}

static int attach(const Driver &d) {
  const CUcontext first = context_of_a_thread(d, 0), again = context_of_a_thread(d, 0);
  const CUcontext second = context_of_a_thread(d, 1);
  if (!first || first != again || !second || first == second) return failed("contexts", "a thread got a wrong one");
  weft::use_device(5);
  if (weft::ensure_context(d) != CUDA_ERROR_INVALID_DEVICE) return failed("contexts", "of a device that is not there");
  weft::use_device(0);
  if (weft::ensure_context(d) != CUDA_SUCCESS || current(d) != first) return failed("contexts", "of this thread");
  weft::use_device(1);  // a thread with a context keeps it
  if (weft::ensure_context(d) != CUDA_SUCCESS || current(d) != first) return failed("contexts", "changed");
  if (weft::ensure_context(weft::cpu_driver()) != CUDA_SUCCESS) return failed("contexts", "of the CPU");
  return 0;
}

static int use(const Driver &d) {
  if (std::strcmp(d.name, "cuda") != 0) return failed("name", d.name);
  int ran = 0, version = 0;
  CUstream stream;
  CUgraph graph, captured;
  CUgraphExec exec;
  CUstreamCaptureStatus status;
  const CUgraphEdgeData *edges = reinterpret_cast<const CUgraphEdgeData *>(&ran);
  std::size_t dependencies = 9, edge_count = 9;
  const auto add = [](void *counter) { ++*static_cast<int *>(counter); };
  bool ok =
      d.cuDriverGetVersion(&version) == CUDA_SUCCESS && d.cuStreamCreate(&stream, 1) == CUDA_SUCCESS &&
      d.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS &&
      d.cuLaunchHostFunc(stream, add, &ran) == CUDA_SUCCESS && d.cuLaunchHostFunc(stream, add, &ran) == CUDA_SUCCESS &&
      d.cuStreamGetCaptureInfo(stream, &status, nullptr, &captured, nullptr, &edges, &dependencies) == CUDA_SUCCESS &&
      d.cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS &&
      d.cuGraphGetEdges(graph, nullptr, nullptr, &edge_count) == CUDA_SUCCESS &&
      d.cuGraphInstantiate(&exec, graph, 0) == CUDA_SUCCESS && d.cuGraphLaunch(exec, stream) == CUDA_SUCCESS &&
      d.cuStreamSynchronize(stream) == CUDA_SUCCESS && d.cuGraphExecDestroy(exec) == CUDA_SUCCESS &&
      d.cuGraphDestroy(graph) == CUDA_SUCCESS && d.cuStreamDestroy(stream) == CUDA_SUCCESS;
  ok = ok && ran == 2 && captured == graph && edges == nullptr && dependencies == 1 && edge_count == 1;
  return ok ? 0 : failed("the table", "a call failed or gave a wrong answer");
}

static int poll(const Driver &d, bool can) {
  const char *why = "";
  if (weft::can_poll(d, &why) != can) return failed("can_poll", why);
  if (weft::prepare_polling(d) != (can ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED)) return failed("prepare_polling", "");
  if (!can) return std::strstr(why, "no stream memory operations") ? 0 : failed("can_poll", why);
  int ran = 0;
  CUstream stream;
  CUgraph graph;
  CUgraphExec exec;
  weft::PolledCall *call = weft::new_polled_call(d, [](void *counter) { ++*static_cast<int *>(counter); }, &ran);
  bool ok = call && d.cuStreamCreate(&stream, 1) == CUDA_SUCCESS &&
            d.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS &&
            weft::launch_polled(stream, *call, "task") == CUDA_SUCCESS &&
            d.cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS &&
            d.cuGraphInstantiate(&exec, graph, 0) == CUDA_SUCCESS;
  for (int i = 0; ok && i < 20; ++i) {
    weft::expect_polled(d, 1);
    ok = d.cuGraphLaunch(exec, stream) == CUDA_SUCCESS;
  }
  ok = ok && d.cuStreamSynchronize(stream) == CUDA_SUCCESS && weft::drain_polled(10) && ran == 20;
  return ok ? 0 : failed("polled calls", "a call failed, or did not run");
}

int main(int argc, char **argv) {
  const char *expected = argc > 1 ? argv[1] : "works", *why = nullptr;
  const Driver *driver = weft::cuda_driver(&why);
  if (std::strncmp(expected, "works", 5) == 0)
    return driver ? attach(*driver) || use(*driver) || poll(*driver, !expected[5]) : failed("no driver", why);
  if (driver) return failed("a driver was found, expected", expected);
  return std::strstr(why, expected) ? 0 : failed(expected, why);
}
