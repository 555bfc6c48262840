// Random schedules: a program of dependent steps gives the sequential result under every seed, and some seed finds a
// missing wait.
#include "driver/polling/polled.h"
#include "fixture.h"

using namespace weft::test;

namespace {

constexpr int kCells = 12, kSteps = 60, kRepeats = 3;

std::uint64_t next(std::uint64_t &x) {
  x ^= x << 13;
  x ^= x >> 7;
  return x ^= x << 17;
}

struct Step {
  std::uint64_t *cells;
  int to, from;
};
void mix(void *data) {
  auto *step = static_cast<Step *>(data);
  step->cells[step->to] = step->cells[step->to] * 31 + step->cells[step->from] + 7;
}

// Steps over cells on three streams. Each cell has an event, recorded after its last read or write. A step waits for
// the events of its two cells. `skip` is the index of a step that does not wait.
struct Program {
  std::uint64_t cells[kCells];
  std::vector<Step> steps;
  std::vector<weft::PolledCall *> polled;  // the captured host steps, if they are polled
  std::uint64_t seed;

  explicit Program(std::uint64_t program) : seed(program * 2654435761u + 1) {
    for (int i = 0; i < kCells; ++i) cells[i] = i + 1;
    for (int i = 0; i < kSteps; ++i) {
      const int to = static_cast<int>(next(seed) % kCells);
      const int from = static_cast<int>((to + 1 + next(seed) % (kCells - 1)) % kCells);
      steps.push_back({cells, to, from});
    }
  }

  std::vector<std::uint64_t> sequential() {
    Program copy(*this);
    for (int i = 0; i < kRepeats * kSteps; ++i) {
      Step &step = copy.steps[i % kSteps];
      step.cells = copy.cells;
      if (copies(i % kSteps))
        step.cells[step.to] = step.cells[step.from];
      else
        mix(&step);
    }
    return {copy.cells, copy.cells + kCells};
  }

  // Enqueues a host step. Half of the captured programs use memory operations and the polling thread, all others a host
  // function.
  void host(CUstream stream, Step *step, bool captured) {
    if (captured && seed % 2 == 0) {
      polled.push_back(weft::new_polled_call(d, mix, step));
      CHECK_OK(weft::launch_polled(stream, *polled.back(), "mix"));
    } else {
      CHECK_OK(d.cuLaunchHostFunc(stream, mix, step));
    }
  }

  static bool copies(std::ptrdiff_t step) { return step % 3 == 0; }

  void issue(const std::vector<CUstream> &streams, const std::vector<CUevent> &events, int skip, bool captured) {
    std::vector<char> used(kCells, !captured);
    for (int i = 0; i < kSteps; ++i) {
      Step &step = steps[i];
      CUstream stream = streams[i % streams.size()];
      for (int cell : {step.to, step.from})
        if (i != skip && used[cell]) CHECK_OK(d.cuStreamWaitEvent(stream, events[cell], 0));
      if (copies(i))
        CHECK_OK(d.cuMemcpyAsync(address(&cells[step.to]), address(&cells[step.from]), sizeof(std::uint64_t), stream));
      else if (i % 3 == 1)
        host(stream, &step, captured);
      else
        CHECK_OK(weft::cpu::launch_device(stream, mix, &step));
      for (int cell : {step.to, step.from}) {
        CHECK_OK(d.cuEventRecord(events[cell], stream));
        used[cell] = 1;
      }
    }
  }
};

bool run(std::uint64_t program_number, std::uint64_t seed, int skip, bool captured) {
  Program program(program_number);
  const std::vector<std::uint64_t> expected = program.sequential();
  CHECK_OK(weft::cpu::set_schedule(schedule(), seed));
  CHECK_OK(weft::prepare_polling(d));
  std::vector<CUstream> streams;
  std::vector<CUevent> events;
  for (int i = 0; i < 3; ++i) streams.push_back(new_stream());
  for (int i = 0; i < kCells + 1; ++i) events.push_back(new_event());
  if (captured) {
    CHECK_OK(d.cuStreamBeginCapture(streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CHECK_OK(d.cuEventRecord(events[kCells], streams[0]));
    for (int i : {1, 2}) CHECK_OK(d.cuStreamWaitEvent(streams[i], events[kCells], 0));
    program.issue(streams, events, skip, true);
    for (int i : {1, 2}) {
      CHECK_OK(d.cuEventRecord(events[kCells], streams[i]));
      CHECK_OK(d.cuStreamWaitEvent(streams[0], events[kCells], 0));
    }
    CUgraph graph = nullptr;
    CHECK_OK(d.cuStreamEndCapture(streams[0], &graph));
    CUgraphExec exec = instantiate(graph);
    for (int i = 0; i < kRepeats; ++i) {
      weft::expect_polled(d, program.polled.size());
      CHECK_OK(d.cuGraphLaunch(exec, streams[0]));
    }
    CHECK_OK(d.cuGraphExecDestroy(exec));
  } else {
    for (int i = 0; i < kRepeats; ++i) program.issue(streams, events, skip, false);
  }
  for (CUstream stream : streams) CHECK_OK(d.cuStreamSynchronize(stream));
  for (weft::PolledCall *call : program.polled) weft::free_polled_call(call);
  for (CUstream stream : streams) CHECK_OK(d.cuStreamDestroy(stream));
  for (CUevent event : events) CHECK_OK(d.cuEventDestroy(event));
  return std::vector<std::uint64_t>(program.cells, program.cells + kCells) == expected;
}

// Whether the order depends on the seed.
bool draws() { return schedule() == weft::cpu::Schedule::kRandom || schedule() == weft::cpu::Schedule::kAhead; }

}  // namespace

TEST_CASE("every schedule gives the sequential result") {
  const int seeds = draws() ? 200 : 40;
  for (int seed = 0; seed < seeds; ++seed) {
    CHECK(run(seed % 10, seed, -1, false));
    CHECK(run(seed % 10, seed, -1, true));
  }
}

TEST_CASE("a missing wait is found by some seed") {
  if (!draws()) return;
  for (bool captured : {false, true}) {
    int found = 0;
    for (int seed = 0; seed < 200; ++seed) found += !run(3, seed, 40, captured);
    CHECK(found > 0);
    CHECK(found < 200);
  }
}

TEST_CASE("a seed gives one order") {
  if (schedule() != weft::cpu::Schedule::kRandom) return;
  const auto order = [](std::uint64_t seed) {
    CHECK_OK(weft::cpu::set_schedule(schedule(), seed));
    Streams s;
    std::vector<int> seen;
    std::vector<Append> tasks;
    for (int i = 0; i < 60; ++i) tasks.push_back({&seen, i});
    for (int i = 0; i < 60; ++i)
      CHECK_OK(d.cuLaunchHostFunc(i % 3 ? (i % 3 == 1 ? s.a : s.b) : s.c, append, &tasks[i]));
    CHECK_OK(d.cuCtxSynchronize());
    return seen;
  };
  CHECK(order(5) == order(5));
  CHECK(order(5) != order(6));
  CHECK(order(6) == order(6));
}

TEST_CASE("the host runs ahead") {
  if (schedule() != weft::cpu::Schedule::kRandom) return;
  int behind = 0, done = 0;
  for (int seed = 0; seed < 50; ++seed) {
    CHECK_OK(weft::cpu::set_schedule(schedule(), seed));
    Streams s;
    std::atomic<int> ran{0};
    for (int i = 0; i < 5; ++i) CHECK_OK(d.cuLaunchHostFunc(s.a, add_one, &ran));
    behind += ran == 0;
    done += ran == 5;
    CHECK_OK(d.cuStreamSynchronize(s.a));
  }
  CHECK(behind > 0);
  CHECK(done > 0);
}
