// What a node of a replayed graph costs, on one thread and across threads; not a test.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "driver_cpu.h"

using namespace weft;
using namespace weft::cu;

static const Driver &d = cpu_driver();
static double now() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
static void count(void *counter) { ++*static_cast<long *>(counter); }
static void must(CUresult result) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "driver call failed: %d\n", result);
  std::abort();
}
static void busy(void *nanoseconds) {
  const double end = now() + *static_cast<double *>(nanoseconds);
  while (now() < end) {
  }
}

struct Fixture {
  CUstream stream = nullptr, side = nullptr;
  CUevent fork = nullptr, join = nullptr;
  Fixture() {
    must(d.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    must(d.cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    must(d.cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    must(d.cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  }
  void begin() { must(d.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)); }
  CUgraphExec end() {
    CUgraph graph;
    CUgraphExec exec;
    must(d.cuStreamEndCapture(stream, &graph));
    must(d.cuGraphInstantiate(&exec, graph, 0));
    must(d.cuGraphDestroy(graph));
    return exec;
  }
  void fork_side() {
    must(d.cuEventRecord(fork, stream));
    must(d.cuStreamWaitEvent(side, fork, 0));
  }
  void join_side() {
    must(d.cuEventRecord(join, side));
    must(d.cuStreamWaitEvent(stream, join, 0));
  }
  // Median time of one replay.
  double replay(CUgraphExec exec, int times) {
    std::vector<double> took;
    for (int i = 0; i < times; ++i) {
      const double begin = now();
      must(d.cuGraphLaunch(exec, stream));
      must(d.cuStreamSynchronize(stream));
      took.push_back(now() - begin);
    }
    std::sort(took.begin(), took.end());
    return took[took.size() / 2];
  }
};

static double chain(int nodes) {
  Fixture f;
  long counter = 0;
  f.begin();
  for (int i = 0; i < nodes; ++i) must(d.cuLaunchHostFunc(f.stream, count, &counter));
  CUgraphExec exec = f.end();
  const double took = f.replay(exec, nodes > 100 ? 300 : 5000);
  must(d.cuGraphExecDestroy(exec));
  return took;
}

static double forked(int pairs) {
  Fixture f;
  long a = 0, b = 0;
  f.begin();
  for (int i = 0; i < pairs; ++i) {
    f.fork_side();
    must(d.cuLaunchHostFunc(f.stream, count, &a));
    must(d.cuLaunchHostFunc(f.side, count, &b));
    f.join_side();
  }
  CUgraphExec exec = f.end();
  const double took = f.replay(exec, 300);
  must(d.cuGraphExecDestroy(exec));
  return took;
}

// A device node of `device` ns beside a host node of `host` ns.
static double beside(double device, double host, int pairs) {
  Fixture f;
  f.begin();
  for (int i = 0; i < pairs; ++i) {
    f.fork_side();
    must(cpu::launch_device(f.stream, busy, &device));
    must(d.cuLaunchHostFunc(f.side, busy, &host));
    f.join_side();
  }
  CUgraphExec exec = f.end();
  const double took = f.replay(exec, 200);
  must(d.cuGraphExecDestroy(exec));
  return took / pairs;
}

int main() {
  must(cpu::set_schedule(cpu::Schedule::kInline, 0));
  const double launch = chain(1), long_chain = chain(10000);
  std::printf("inline: launch and wait, graph of 1 node   %8.0f ns\n", launch);
  std::printf("inline: host node in a chain of 10,000     %8.1f ns/node\n", long_chain / 10000);
  std::printf("inline: host node, 2 streams, 1,000 forks  %8.1f ns/node\n", forked(1000) / 2000);
  {
    Fixture f;
    long counter = 0;
    const double begin = now();
    for (int i = 0; i < 100000; ++i) must(d.cuLaunchHostFunc(f.stream, count, &counter));
    must(d.cuStreamSynchronize(f.stream));
    std::printf("inline: eager host function                %8.1f ns/node\n", (now() - begin) / 1e5);
  }
  for (double host : {20e3, 100e3, 300e3}) {
    std::printf("inline: 300 us device beside %3.0f us host     %8.1f us a pair\n", host * 1e-3,
                beside(300e3, host, 10) * 1e-3);
  }
  must(cpu::set_schedule(cpu::Schedule::kThreads, 0));
  std::printf("threads: launch and wait, graph of 1 node  %8.0f ns\n", chain(1));
  std::printf("threads: host node in a chain of 10,000    %8.1f ns/node\n", chain(10000) / 10000);
  std::printf("threads: host node, 2 streams, 1,000 forks %8.1f ns/node\n", forked(1000) / 2000);
  return 0;
}
