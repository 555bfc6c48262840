// Stream memory operations: words that streams write, and words that they wait for.
#include "fixture.h"

using namespace weft::test;

namespace {

cuuint32_t load(const cuuint32_t &word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }
void store(cuuint32_t &word, cuuint32_t value) { __atomic_store_n(&word, value, __ATOMIC_RELEASE); }

void write(CUstream stream, const cuuint32_t &word, cuuint32_t value) {
  OK(d.cuStreamWriteValue32(stream, address(&word), value, CU_STREAM_WRITE_VALUE_DEFAULT));
}
void wait(CUstream stream, const cuuint32_t &word, cuuint32_t value, unsigned flags = CU_STREAM_WAIT_VALUE_EQ) {
  OK(d.cuStreamWaitValue32(stream, address(&word), value, flags));
}

// Answers requests on a thread that the driver does not know, and says so or not.
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

TEST(a_value_is_written_in_order) {
  Streams s;
  cuuint32_t word = 0, seen = 9, later = 9;
  OK(d.cuMemcpyAsync(address(&seen), address(&word), sizeof word, s.a));
  write(s.a, word, 7);
  OK(d.cuMemcpyAsync(address(&later), address(&word), sizeof word, s.a));
  OK(d.cuStreamSynchronize(s.a));
  EQUAL(seen, 0);
  EQUAL(later, 7);
}

TEST(a_wait_holds_its_stream_and_no_other) {
  Streams s;
  cuuint32_t word = 0;
  std::vector<int> held, free;
  Append one{&held, 1}, two{&free, 2};
  wait(s.a, word, 1);
  OK(d.cuLaunchHostFunc(s.a, append, &one));
  s.order(s.a, s.b);
  OK(d.cuLaunchHostFunc(s.c, append, &two));
  OK(d.cuStreamSynchronize(s.c));
  for (int i = 0; i < 20; ++i) EQUAL(d.cuStreamQuery(s.a), CUDA_ERROR_NOT_READY);
  CHECK(held.empty() && free.size() == 1);
  std::thread([&word] {
    nap(5);
    store(word, 1);
  }).detach();
  OK(d.cuStreamSynchronize(s.b));
  EQUAL(held.size(), 1);
}

TEST(a_stream_releases_another) {
  Streams s;
  cuuint32_t word = 0;
  std::vector<int> seen;
  Append first{&seen, 1}, second{&seen, 2};
  for (int i = 1; i <= 50; ++i) {
    CUstream waits = i % 2 ? s.a : s.b, writes = i % 2 ? s.b : s.a;
    wait(waits, word, i);
    OK(weft::cpu::launch_device(waits, append, &second));
    OK(weft::cpu::launch_device(writes, append, &first));
    write(writes, word, i);
  }
  OK(d.cuCtxSynchronize());
  EQUAL(seen.size(), 100);
  for (std::size_t i = 0; i < seen.size(); ++i) EQUAL(seen[i], 1 + i % 2);
}

TEST(every_condition_is_waited_for) {
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
    for (int i = 0; i < 5; ++i) EQUAL(d.cuStreamQuery(s.a), CUDA_ERROR_NOT_READY);
    write(s.b, word, c.then);
    OK(d.cuStreamSynchronize(s.a));
    wait(s.a, word, c.value, c.flags);
    OK(d.cuStreamSynchronize(s.a));
  }
}

TEST(what_is_no_word_is_refused) {
  Streams s;
  cuuint32_t words[2] = {};
  for (CUdeviceptr bad : {CUdeviceptr(0), address(words) + 2}) {
    EQUAL(d.cuStreamWriteValue32(s.a, bad, 1, 0), CUDA_ERROR_INVALID_VALUE);
    EQUAL(d.cuStreamWaitValue32(s.a, bad, 1, 0), CUDA_ERROR_INVALID_VALUE);
  }
  EQUAL(d.cuStreamWriteValue32(s.a, address(words), 1, 1), CUDA_ERROR_INVALID_VALUE);
  EQUAL(d.cuStreamWaitValue32(s.a, address(words), 1, 1u << 30), CUDA_ERROR_NOT_SUPPORTED);
  EQUAL(d.cuStreamWaitValue32(reinterpret_cast<CUstream>(words), address(words), 1, 0), CUDA_ERROR_INVALID_HANDLE);
  static std::atomic<int> refused{0};
  refused = 0;
  OK(d.cuLaunchHostFunc(
      s.a,
      [](void *p) {
        refused += d.cuStreamWriteValue32(nullptr, address(p), 1, 0) == CUDA_ERROR_NOT_PERMITTED;
        refused += d.cuStreamWaitValue32(nullptr, address(p), 1, 0) == CUDA_ERROR_NOT_PERMITTED;
      },
      words));
  OK(d.cuStreamSynchronize(s.a));
  EQUAL(refused, 2);
}

TEST(a_capture_has_memory_operations_as_nodes) {
  Streams s;
  cuuint32_t word = 0;
  s.begin();
  write(s.a, word, 1);
  wait(s.a, word, 1);
  EQUAL(d.cuStreamQuery(s.a), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EQUAL(d.cuStreamWaitValue32(s.a, address(&word), 1, 0), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  s.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  s.begin();
  weft::cpu::label_next("asks");
  write(s.a, word, 1);
  wait(s.a, word, 1);
  CUgraph graph = s.end();
  CUgraphNode nodes[3];
  std::size_t count = 3;
  OK(d.cuGraphGetNodes(graph, nodes, &count));
  EQUAL(count, 2);
  for (std::size_t i = 0; i < count; ++i) {
    CUgraphNodeType type;
    OK(d.cuGraphNodeGetType(nodes[i], &type));
    EQUAL(type, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
  }
  CHECK(weft::cpu::node_label(nodes[0]) == std::string("asks"));
  EQUAL(word, 0);
  OK(d.cuGraphDestroy(graph));
}

TEST(a_thread_answers_replays) {
  for (bool tells : {true, false}) {
    Streams s;
    Answering one(tells), two(tells);
    std::vector<int> seen;
    Append before{&seen, 1}, after{&seen, 2};
    s.begin();
    s.order(s.a, s.b);
    OK(weft::cpu::launch_device(s.a, append, &before));
    one.ask(s.a);
    two.ask(s.b);  // beside it
    s.order(s.b, s.a);
    OK(d.cuLaunchHostFunc(s.a, append, &after));
    CUgraphExec exec = instantiate(s.end());
    const int replays = tells ? 200 : 40;
    for (int i = 0; i < replays; ++i) OK(d.cuGraphLaunch(exec, i % 3 ? s.a : s.c));
    OK(d.cuGraphExecDestroy(exec));  // in flight
    OK(d.cuCtxSynchronize());
    EQUAL(seen.size(), 2 * replays);
    for (std::size_t i = 0; i < seen.size(); ++i) EQUAL(seen[i], 1 + i % 2);
    EQUAL(one.answers, replays);
    EQUAL(two.answers, replays);
  }
}

TEST(others_go_on_while_a_stream_waits) {
  Streams s;
  cuuint32_t word = 0;
  std::atomic<int> ran{0};
  wait(s.a, word, 1);
  std::thread waiter([&s] { OK(d.cuStreamSynchronize(s.a)); });
  for (int i = 0; i < 50; ++i) {
    OK(weft::cpu::launch_device(s.b, add_one, &ran));
    OK(d.cuLaunchHostFunc(s.b, add_one, &ran));
    OK(d.cuStreamSynchronize(s.b));
  }
  EQUAL(ran, 100);
  store(word, 1);
  waiter.join();
}
