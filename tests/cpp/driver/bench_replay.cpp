// Benchmark: the time that a replayed graph takes per node, on one thread and across threads.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "driver/cpu/cpu.h"

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
  // Returns the time of one replay in ns: the lower decile, because other processes can only make it longer.
  double replay(CUgraphExec exec, int times) {
    std::vector<double> took;
    for (int i = 0; i < times; ++i) {
      const double begin = now();
      must(d.cuGraphLaunch(exec, stream));
      must(d.cuStreamSynchronize(stream));
      took.push_back(now() - begin);
    }
    std::sort(took.begin(), took.end());
    return took[took.size() / 10];
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

// Returns the time in ns of a device node of `device` ns in parallel with a host node of `host` ns.
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

// Returns the overhead in ns per node when device and host nodes of 2 us alternate. In the "threads" schedule each
// node is handed to another thread.
static double alternating(int pairs) {
  Fixture f;
  double work = 2e3;
  f.begin();
  for (int i = 0; i < pairs; ++i) {
    must(cpu::launch_device(f.stream, busy, &work));
    must(d.cuLaunchHostFunc(f.stream, busy, &work));
  }
  CUgraphExec exec = f.end();
  const double took = f.replay(exec, 100);
  must(d.cuGraphExecDestroy(exec));
  return took / (2 * pairs) - work;
}

// Returns the time in ns from the launch of an eager host function until it has run.
static double eager(int times) {
  Fixture f;
  long counter = 0;
  std::vector<double> took;
  for (int i = 0; i < times; ++i) {
    const double begin = now();
    for (int j = 0; j < 500; ++j) must(d.cuLaunchHostFunc(f.stream, count, &counter));
    must(d.cuStreamSynchronize(f.stream));
    took.push_back(now() - begin);
  }
  std::sort(took.begin(), took.end());
  return took[took.size() / 10] / 500;
}

static void print(const char *what, double value, const char *unit) {
  std::printf("%-52s %10.1f %s\n", what, value, unit);
}

int main() {
  must(cpu::set_schedule(cpu::Schedule::kInline, 0));
  print("inline: launch and wait, graph of 1 node", chain(1), "ns");
  print("inline: host node in a chain of 10,000", chain(10000) / 10000, "ns/node");
  print("inline: host node, 2 streams, 1,000 forks", forked(1000) / 2000, "ns/node");
  print("inline: eager host function", eager(200), "ns/node");
  print("inline: 300 us device node alone", beside(300e3, 0, 10) * 1e-3, "us");
  print("inline: 300 us device beside 100 us host", beside(300e3, 100e3, 10) * 1e-3, "us");
  print("inline: 5 us device beside 60 us host", beside(5e3, 60e3, 10) * 1e-3, "us");
  print("inline: 300 us device beside 300 us host", beside(300e3, 300e3, 10) * 1e-3, "us");
  must(cpu::set_schedule(cpu::Schedule::kThreads, 0));
  print("threads: launch and wait, graph of 1 node", chain(1), "ns");
  print("threads: host node in a chain of 10,000", chain(10000) / 10000, "ns/node");
  print("threads: hand-off to another thread", alternating(200), "ns/node");
  return 0;
}
