// Measures undocumented behaviour of a GPU and its driver: the time of handshakes between kernels and the host, the
// number of threads that run host functions and the work that they block, when a graph's user objects are destroyed,
// and whether a conditional body may have a host node. Driver functions are looked up at run time, so some may be
// missing.

#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#define CHECK(call)                                                                                 \
  do {                                                                                              \
    cudaError_t error_ = (call);                                                                    \
    if (error_) std::printf("ERROR line %d %s: %s\n", __LINE__, #call, cudaGetErrorString(error_)); \
  } while (0)

namespace {

using Clock = std::chrono::steady_clock;
using LaunchHostFunc = CUresult (*)(CUstream, CUhostFn, void *, unsigned);
using StreamValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
constexpr int kReplays = 2000, kWarmUp = 100;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

long thread_id() { return syscall(SYS_gettid); }
__device__ unsigned long long global_time() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

__global__ void stamp(unsigned long long *time) { *time = global_time(); }

// Increments `request`, and spins until a host thread answers.
__global__ void ask_and_spin(volatile unsigned *request, volatile unsigned *answer, unsigned *number) {
  unsigned asked = ++*number;
  *request = asked;
  __threadfence_system();
  while (*answer != asked) {
  }
  __threadfence_system();
}

__global__ void busy(long long ns) {
  auto begin = global_time();
  while (global_time() - begin < static_cast<unsigned long long>(ns)) {
  }
}

// First launched while other work is in flight, so that it is loaded at that time.
__global__ void loaded_late(int *out) {
  if (out) *out = 1;
}

// Written by host functions.
std::mutex threads_mutex;
std::set<long> threads;
std::atomic<int> running{0}, most_running{0};
std::atomic<long> destroyed_by{0};

void note_thread() {
  std::lock_guard<std::mutex> lock(threads_mutex);
  threads.insert(thread_id());
}

void CUDART_CB nothing(void *) { note_thread(); }

void CUDART_CB sleep_us(void *us) {
  int now = ++running, most = most_running;
  while (now > most && !most_running.compare_exchange_weak(most, now)) {
  }
  usleep(static_cast<useconds_t>(reinterpret_cast<std::intptr_t>(us)));
  note_thread();
  --running;
}

void *us_argument(std::intptr_t us) { return reinterpret_cast<void *>(us); }

void CUDART_CB note_destruction(void *) { destroyed_by = thread_id(); }

template <class Function>
Function driver_call(const char *name, int version) {
  void *found = nullptr;
  cudaDriverEntryPointQueryResult result;
  bool failed = cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
  cudaGetLastError();
  return failed || result != cudaDriverEntryPointSuccess ? nullptr : reinterpret_cast<Function>(found);
}

void show(const char *what, std::vector<double> us) {
  std::sort(us.begin(), us.end());
  auto at = [&](double share) { return us[static_cast<size_t>(share * static_cast<double>(us.size() - 1))]; };
  std::printf("%-46s p50 %.2f p90 %.2f p99 %.2f max %.2f us\n", what, at(0.5), at(0.9), at(0.99), at(1));
}

// The main stream, another stream, and time stamps that the host reads.
struct Probe {
  cudaStream_t main{}, other{};
  unsigned long long *stamps{};

  Probe() {
    CHECK(cudaStreamCreateWithFlags(&main, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CHECK(cudaHostAlloc(&stamps, 64, cudaHostAllocMapped));
  }

  template <class Issue>
  cudaGraphExec_t capture(Issue issue) {
    cudaGraph_t graph{};
    cudaGraphExec_t exec{};
    CHECK(cudaStreamBeginCapture(main, cudaStreamCaptureModeThreadLocal));
    issue();
    cudaError_t ended = cudaStreamEndCapture(main, &graph);
    if (ended) {
      std::printf("capture refused: %s\n", cudaGetErrorString(ended));
      return nullptr;
    }
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    return exec;
  }

  // Prints the microseconds on the device between two kernels in a graph, around the work that `between` issues.
  template <class Between>
  void time_between(const char *what, Between between) {
    auto exec = capture([&] {
      stamp<<<1, 1, 0, main>>>(stamps);
      between();
      stamp<<<1, 1, 0, main>>>(stamps + 1);
    });
    if (!exec) return;
    std::vector<double> us;
    for (int i = 0; i < kReplays; ++i) {
      CHECK(cudaGraphLaunch(exec, main));
      CHECK(cudaStreamSynchronize(main));
      if (i > kWarmUp) us.push_back(static_cast<double>(stamps[1] - stamps[0]) / 1e3);
    }
    show(what, us);
    CHECK(cudaGraphExecDestroy(exec));
  }

  void host_nodes();
  void branches();
  void what_a_host_function_blocks(cudaStream_t blocked, cudaStream_t queued);
  void user_objects();
  void hand_shakes();
  void conditional_body();
};

void Probe::host_nodes() {
  time_between("kernel, host node, kernel", [&] { CHECK(cudaLaunchHostFunc(main, nothing, nullptr)); });
  auto launch = driver_call<LaunchHostFunc>("cuLaunchHostFunc", 13020);
  std::printf("cuLaunchHostFunc_v2: %s\n", launch ? "present" : "absent");
  if (launch) time_between("kernel, spinning host node, kernel", [&] { launch(main, nothing, nullptr, 1); });
  std::printf("threads of host functions so far: %zu\n", threads.size());
}

void Probe::branches() {
  cudaStream_t branch[4];
  cudaEvent_t fork, join[4];
  CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  for (int i = 0; i < 4; ++i) {
    CHECK(cudaStreamCreateWithFlags(&branch[i], cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&join[i], cudaEventDisableTiming));
  }
  auto timed = [&](const char *what, auto issue) {
    threads.clear();
    most_running = 0;
    auto begin = Clock::now();
    issue();
    CHECK(cudaDeviceSynchronize());
    std::printf("4 host functions of 20 ms %s: %.1f ms, %d at once, %zu threads\n", what, us_since(begin) / 1e3,
                most_running.load(), threads.size());
  };
  auto exec = capture([&] {
    stamp<<<1, 1, 0, main>>>(stamps);
    CHECK(cudaEventRecord(fork, main));
    for (int i = 0; i < 4; ++i) {
      CHECK(cudaStreamWaitEvent(branch[i], fork, 0));
      CHECK(cudaLaunchHostFunc(branch[i], sleep_us, us_argument(20000)));
      CHECK(cudaEventRecord(join[i], branch[i]));
      CHECK(cudaStreamWaitEvent(main, join[i], 0));
    }
  });
  if (exec) timed("on branches of a graph", [&] { CHECK(cudaGraphLaunch(exec, main)); });
  timed("on four streams", [&] {
    for (auto each : branch) CHECK(cudaLaunchHostFunc(each, sleep_us, us_argument(20000)));
  });
  what_a_host_function_blocks(branch[0], branch[1]);
}

void Probe::what_a_host_function_blocks(cudaStream_t blocked, cudaStream_t queued) {
  std::printf("us of calls while a host function sleeps 50 ms:");
  auto meanwhile = [&](const char *what, auto call) {
    CHECK(cudaLaunchHostFunc(blocked, sleep_us, us_argument(50000)));
    usleep(2000);
    auto begin = Clock::now();
    call();
    std::printf(" %s %.1f", what, us_since(begin));
    CHECK(cudaDeviceSynchronize());
  };
  void *memory{};
  meanwhile("launch", [&] { stamp<<<1, 1, 0, other>>>(stamps + 2); });
  meanwhile("launch and wait", [&] {
    stamp<<<1, 1, 0, other>>>(stamps + 2);
    CHECK(cudaStreamSynchronize(other));
  });
  meanwhile("first launch", [&] { loaded_late<<<1, 1, 0, other>>>(nullptr); });
  meanwhile("malloc", [&] { CHECK(cudaMalloc(&memory, 1 << 20)); });
  meanwhile("free", [&] { CHECK(cudaFree(memory)); });
  meanwhile("host function elsewhere", [&] { CHECK(cudaLaunchHostFunc(queued, nothing, nullptr)); });
  std::printf("\n");
  for (int count : {16, 256, 1100}) {
    CHECK(cudaLaunchHostFunc(blocked, sleep_us, us_argument(300000)));
    usleep(2000);
    auto begin = Clock::now();
    for (int i = 0; i < count; ++i) CHECK(cudaLaunchHostFunc(blocked, nothing, nullptr));
    double queuing = us_since(begin);
    begin = Clock::now();
    stamp<<<1, 1, 0, other>>>(stamps + 2);
    std::printf("%d more queued there: %.1f ms, then a launch elsewhere %.1f us\n", count, queuing / 1e3,
                us_since(begin));
    CHECK(cudaDeviceSynchronize());
  }
}

// Tests whether the executable graph keeps a graph's user object, and when and by which thread it is destroyed.
void Probe::user_objects() {
  cudaGraphExec_t exec = capture([&] {
    cudaStreamCaptureStatus status;
    cudaGraph_t capturing{};
    cudaUserObject_t object{};
    CHECK(cudaStreamGetCaptureInfo(main, &status, nullptr, &capturing, nullptr, nullptr, nullptr));
    CHECK(cudaUserObjectCreate(&object, stamps, note_destruction, 1, cudaUserObjectNoDestructorSync));
    CHECK(cudaGraphRetainUserObject(capturing, object, 1, cudaGraphUserObjectMove));
    CHECK(cudaLaunchHostFunc(main, nothing, nullptr));
    busy<<<1, 1, 0, main>>>(30000000);
  });
  if (!exec) return;
  usleep(20000);
  std::printf("user object: destroyed with the graph %d,", destroyed_by != 0);
  CHECK(cudaGraphLaunch(exec, main));
  auto begin = Clock::now();
  CHECK(cudaGraphExecDestroy(exec));
  std::printf(" destroying the exec in flight took %.1f us,", us_since(begin));
  usleep(5000);
  std::printf(" destroyed 5 ms later %d,", destroyed_by != 0);
  CHECK(cudaStreamSynchronize(main));
  while (!destroyed_by && us_since(begin) < 3e6) usleep(100);
  std::printf(" at last after %.1f ms, by a thread of host functions %d, by the main one %d\n", us_since(begin) / 1e3,
              static_cast<int>(threads.count(destroyed_by)), destroyed_by == thread_id());
}

// Times requests to a polling host thread: by a spinning kernel, and by memory operations of the stream.
void Probe::hand_shakes() {
  unsigned *host{}, *device{}, *number{};
  CHECK(cudaHostAlloc(&host, 256, cudaHostAllocMapped));
  CHECK(cudaHostGetDevicePointer(&device, host, 0));
  CHECK(cudaMalloc(&number, sizeof(unsigned)));
  CHECK(cudaMemset(number, 0, sizeof(unsigned)));
  volatile unsigned *request = host, *answer = host + 32;
  std::atomic<bool> stop{false};
  *request = *answer = 0;
  std::thread echo([&] {
    for (unsigned last = 0; !stop;) {
      unsigned asked = *request;
      if (asked != last) *answer = last = asked;
    }
  });
  time_between("kernel, kernel that asks the host, kernel",
               [&] { ask_and_spin<<<1, 1, 0, main>>>(device, device + 32, number); });
  stop = true;
  echo.join();

  auto wait = driver_call<StreamValue>("cuStreamWaitValue32", 13000);
  auto write = driver_call<StreamValue>("cuStreamWriteValue32", 13000);
  if (!wait || !write) {
    std::printf("no memory operations of streams\n");
    return;
  }
  stop = false;
  *request = *answer = 0;
  std::thread reply([&] {
    while (!stop) {
      if (*request == 1) {
        *request = 0;
        *answer = 1;
      }
    }
  });
  auto at = [&](unsigned *word) { return reinterpret_cast<CUdeviceptr>(word); };
  time_between("kernel, write, wait for value, kernel", [&] {
    int written = write(main, at(device), 1, 0);
    int waited = wait(main, at(device + 32), 1, CU_STREAM_WAIT_VALUE_EQ);
    int reset = write(main, at(device + 32), 0, 0);
    std::printf("memory operations in a capture: %d %d %d\n", written, waited, reset);
  });
  stop = true;
  reply.join();
}

void Probe::conditional_body() {
  cudaGraph_t graph{};
  cudaGraphConditionalHandle handle{};
  cudaGraphNode_t loop{}, inside{};
  cudaGraphExec_t exec{};
  CHECK(cudaGraphCreate(&graph, 0));
  CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
  cudaGraphNodeParams parameters = {};
  parameters.type = cudaGraphNodeTypeConditional;
  parameters.conditional.handle = handle;
  parameters.conditional.type = cudaGraphCondTypeWhile;
  parameters.conditional.size = 1;
  CHECK(cudaGraphAddNode(&loop, graph, nullptr, nullptr, 0, &parameters));
  cudaHostNodeParams host{nothing};
  cudaError_t added = cudaGraphAddHostNode(&inside, parameters.conditional.phGraph_out[0], nullptr, 0, &host);
  cudaError_t made = added ? added : cudaGraphInstantiate(&exec, graph, 0);
  std::printf("host node in a loop's body: added %s, instantiated %s\n", cudaGetErrorString(added),
              cudaGetErrorString(made));
  cudaGetLastError();
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what it has said stays, if it is ended
  int driver{}, runtime{};
  CHECK(cudaDriverGetVersion(&driver));
  CHECK(cudaRuntimeGetVersion(&runtime));
  std::printf("driver %d, runtime %d\n", driver, runtime);
  Probe probe;
  probe.host_nodes();
  probe.branches();
  probe.user_objects();
  probe.hand_shakes();
  probe.conditional_body();
  CHECK(cudaDeviceSynchronize());
}
