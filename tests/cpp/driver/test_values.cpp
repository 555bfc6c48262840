// Stream memory operations: writing words, and waiting for them.
#include "fixture.h"

using namespace weft::test;

namespace {

cuuint32_t load(const cuuint32_t &word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }
void store(cuuint32_t &word, cuuint32_t value) { __atomic_store_n(&word, value, __ATOMIC_RELEASE); }

void write(CUstream stream, const cuuint32_t &word, cuuint32_t value) {
  CHECK_OK(d.cuStreamWriteValue32(stream, address(&word), value, CU_STREAM_WRITE_VALUE_DEFAULT));
}
void wait(CUstream stream, const cuuint32_t &word, cuuint32_t value, unsigned flags = CU_STREAM_WAIT_VALUE_EQ) {
  CHECK_OK(d.cuStreamWaitValue32(stream, address(&word), value, flags));
}

// Answers requests on a thread unknown to the driver. With `tells`, it reports each answer to the driver.
struct Answering {
  cuuint32_t request = 0, answer = 0;
  int answers = 0;
  std::atomic<bool> over{false};
  std::thread thread;
  explicit Answering(bool tells) {
    thread = std::thread([this, tells] {
      while (!over) {
        if (!load(request)) {
          std::this_thread::yield();
          continue;
        }
        ++answers;
        store(request, 0);
        store(answer, 1);
        if (tells) weft::cpu::values_changed();
      }
    });
  }
  ~Answering() {
    over = true;
    thread.join();
  }
  void ask(CUstream stream) {
    write(stream, request, 1);
    wait(stream, answer, 1);
    write(stream, answer, 0);
  }
};

}  // namespace

TEST_CASE("a value is written in order") {
  Streams s;
  cuuint32_t word = 0, seen = 9, later = 9;
  CHECK_OK(d.cuMemcpyAsync(address(&seen), address(&word), sizeof word, s.a));
  write(s.a, word, 7);
  CHECK_OK(d.cuMemcpyAsync(address(&later), address(&word), sizeof word, s.a));
  CHECK_OK(d.cuStreamSynchronize(s.a));
  CHECK(seen == 0);
  CHECK(later == 7);
}

TEST_CASE("a wait holds its stream and no other") {
  Streams s;
  cuuint32_t word = 0;
  std::vector<int> held, free;
  Append one{&held, 1}, two{&free, 2};
  wait(s.a, word, 1);
  CHECK_OK(d.cuLaunchHostFunc(s.a, append, &one));
  s.order(s.a, s.b);
  CHECK_OK(d.cuLaunchHostFunc(s.c, append, &two));
  CHECK_OK(d.cuStreamSynchronize(s.c));
  for (int i = 0; i < 20; ++i) CHECK(d.cuStreamQuery(s.a) == CUDA_ERROR_NOT_READY);
  CHECK(held.empty());
  CHECK(free.size() == 1);
  std::thread([&word] {
    nap(5);
    store(word, 1);
  }).detach();
  CHECK_OK(d.cuStreamSynchronize(s.b));
  CHECK(held.size() == 1);
}

TEST_CASE("a stream releases another") {
  Streams s;
  cuuint32_t word = 0;
  std::vector<int> seen;
  Append first{&seen, 1}, second{&seen, 2};
  for (int i = 1; i <= 50; ++i) {
    CUstream waits = i % 2 ? s.a : s.b, writes = i % 2 ? s.b : s.a;
    wait(waits, word, i);
    CHECK_OK(weft::cpu::launch_device(waits, append, &second));
    CHECK_OK(weft::cpu::launch_device(writes, append, &first));
    write(writes, word, i);
  }
  CHECK_OK(d.cuCtxSynchronize());
  CHECK(seen.size() == 100);
  for (std::size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == 1 + i % 2);
}

TEST_CASE("every condition is waited for") {
  struct Case {
    unsigned flags;
    cuuint32_t value, not_yet, then;
  };
  const Case cases[] = {{CU_STREAM_WAIT_VALUE_GEQ, 5, 4, 6},
                        {CU_STREAM_WAIT_VALUE_GEQ, 2, 0xfffffff0u, 3},  // cyclic
                        {CU_STREAM_WAIT_VALUE_GEQ, 0xfffffff0u, 0xffffff00u, 1},
                        {CU_STREAM_WAIT_VALUE_EQ, 5, 6, 5},
                        {CU_STREAM_WAIT_VALUE_AND, 6, 9, 4},
                        {CU_STREAM_WAIT_VALUE_NOR, 0xff, 0xffffff00u, 0xff}};
  for (const Case &c : cases) {
    Streams s;
    cuuint32_t word = c.not_yet;
    wait(s.a, word, c.value, c.flags);
    for (int i = 0; i < 5; ++i) CHECK(d.cuStreamQuery(s.a) == CUDA_ERROR_NOT_READY);
    write(s.b, word, c.then);
    CHECK_OK(d.cuStreamSynchronize(s.a));
    wait(s.a, word, c.value, c.flags);
    CHECK_OK(d.cuStreamSynchronize(s.a));
  }
}

TEST_CASE("what is no word is refused") {
  Streams s;
  cuuint32_t words[2] = {};
  for (CUdeviceptr bad : {CUdeviceptr(0), address(words) + 2}) {
    CHECK(d.cuStreamWriteValue32(s.a, bad, 1, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(d.cuStreamWaitValue32(s.a, bad, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(d.cuStreamWriteValue32(s.a, address(words), 1, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(d.cuStreamWaitValue32(s.a, address(words), 1, 1u << 30) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(d.cuStreamWaitValue32(reinterpret_cast<CUstream>(words), address(words), 1, 0) == CUDA_ERROR_INVALID_HANDLE);
  static std::atomic<int> refused{0};
  refused = 0;
  CHECK_OK(d.cuLaunchHostFunc(
      s.a,
      [](void *p) {
        refused += d.cuStreamWriteValue32(nullptr, address(p), 1, 0) == CUDA_ERROR_NOT_PERMITTED;
        refused += d.cuStreamWaitValue32(nullptr, address(p), 1, 0) == CUDA_ERROR_NOT_PERMITTED;
      },
      words));
  CHECK_OK(d.cuStreamSynchronize(s.a));
  CHECK(refused == 2);
}

TEST_CASE("a capture has memory operations as nodes") {
  Streams s;
  cuuint32_t word = 0;
  s.begin();
  write(s.a, word, 1);
  wait(s.a, word, 1);
  CHECK(d.cuStreamQuery(s.a) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(d.cuStreamWaitValue32(s.a, address(&word), 1, 0) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  s.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  s.begin();
  weft::cpu::label_next("asks");
  write(s.a, word, 1);
  wait(s.a, word, 1);
  CUgraph graph = s.end();
  CUgraphNode nodes[3];
  std::size_t count = 3;
  CHECK_OK(d.cuGraphGetNodes(graph, nodes, &count));
  CHECK(count == 2);
  for (std::size_t i = 0; i < count; ++i) {
    CUgraphNodeType type;
    CHECK_OK(d.cuGraphNodeGetType(nodes[i], &type));
    CHECK(type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
  }
  CHECK(weft::cpu::node_label(nodes[0]) == std::string("asks"));
  CHECK(word == 0);
  CHECK_OK(d.cuGraphDestroy(graph));
}

TEST_CASE("a thread answers replays") {
  for (bool tells : {true, false}) {
    Streams s;
    Answering one(tells), two(tells);
    std::vector<int> seen;
    Append before{&seen, 1}, after{&seen, 2};
    s.begin();
    s.order(s.a, s.b);
    CHECK_OK(weft::cpu::launch_device(s.a, append, &before));
    one.ask(s.a);
    two.ask(s.b);  // in parallel
    s.order(s.b, s.a);
    CHECK_OK(d.cuLaunchHostFunc(s.a, append, &after));
    CUgraphExec exec = instantiate(s.end());
    const int replays = tells ? 200 : 40;
    for (int i = 0; i < replays; ++i) CHECK_OK(d.cuGraphLaunch(exec, i % 3 ? s.a : s.c));
    CHECK_OK(d.cuGraphExecDestroy(exec));  // in flight
    CHECK_OK(d.cuCtxSynchronize());
    CHECK(seen.size() == 2 * replays);
    for (std::size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == 1 + i % 2);
    CHECK(one.answers == replays);
    CHECK(two.answers == replays);
  }
}

TEST_CASE("others go on while a stream waits") {
  Streams s;
  cuuint32_t word = 0;
  std::atomic<int> ran{0};
  wait(s.a, word, 1);
  std::thread waiter([&s] { CHECK_OK(d.cuStreamSynchronize(s.a)); });
  for (int i = 0; i < 50; ++i) {
    CHECK_OK(weft::cpu::launch_device(s.b, add_one, &ran));
    CHECK_OK(d.cuLaunchHostFunc(s.b, add_one, &ran));
    CHECK_OK(d.cuStreamSynchronize(s.b));
  }
  CHECK(ran == 100);
  store(word, 1);
  waiter.join();
}
