#include "driver/polling/polled.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>

#include "driver/context.h"
#include "driver/cpu/cpu.h"
#include "support/pause.h"

namespace weft {

using namespace cu;

struct PolledCall {
  std::atomic<bool> taken{false};
  const Driver *driver = nullptr;
  CUhostFn fn = nullptr;
  void *data = nullptr;
  cuuint32_t *request = nullptr, *answer = nullptr;
  CUdeviceptr request_at = 0, answer_at = 0;  // the device's addresses of the same words
};

namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kCalls = 2048, kPages = 64;
// While runs are expected but none is requested, the thread spins for this long, and then naps for longer and longer.
// On the CPU driver it spins for less, because the streams need the cores.
constexpr std::chrono::microseconds kSpinForCuda{200'000}, kSpinForCpu{50};
constexpr std::chrono::nanoseconds kLeastNap{50'000};
constexpr std::chrono::nanoseconds kMaxNap{100'000'000};  // the longest time between two checks while there is any call

cuuint32_t load(const cuuint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
void store(cuuint32_t *word, cuuint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

bool is_cpu(const Driver &driver) { return &driver == &cpu_driver(); }

// Requests are adjacent, with the answers after them, so that a check of all requests reads few cache lines.
struct Words {
  cuuint32_t requests[kCalls], answers[kCalls];
};

struct Page {
  const Driver *driver;
  Words *words;
  std::array<PolledCall, kCalls> calls;
  std::atomic<unsigned> used{0};  // calls from this index on were never handed out
};

// The poller of this process. Never destroyed: graphs and the thread may outlive the statics.
struct Poller {
  std::array<std::atomic<Page *>, kPages> pages{};
  std::atomic<std::int64_t> expected[2] = {{0}, {0}};  // announced runs: of CUDA's graphs, of the CPU's
  std::atomic<std::uint64_t> launches{0};
  std::atomic<int> live{0};
  std::atomic<bool> asleep{false}, started{false};
  std::mutex mutex;  // held by threads that sleep, wake the poller, start it, or add a page
  std::condition_variable wake;

  Poller() = default;
  // For a forked child: takes over the calls of `other` and the expected runs of the CPU's graphs. CUDA and the thread
  // do not survive a fork.
  explicit Poller(const Poller &other) : live(other.live.load()) {
    for (unsigned i = 0; i < kPages; ++i) pages[i].store(other.pages[i].load());
    expected[1].store(other.expected[1].load());
  }
};

std::atomic<Poller *> current{nullptr};

// Returns this process's poller. A forked child gets a new one: it has the graphs but not the thread, which may have
// held the old mutex.
Poller &poller() {
  static const int first = [] {
    current.store(new Poller);
    return pthread_atfork(nullptr, nullptr, [] { current.store(new Poller(*current.load())); });
  }();
  static_cast<void>(first);
  return *current.load();
}

void count_down(std::atomic<std::int64_t> &expected) {
  std::int64_t now = expected.load();
  while (now > 0 && !expected.compare_exchange_weak(now, now - 1)) {
  }
}

// Runs a requested call and answers it. After the answer the graph may be destroyed, and the call with it, so `call` is
// not used after it.
void run(Poller &p, const PolledCall &call) noexcept {
  const bool cpu = is_cpu(*call.driver);
  // Clear the request before the answer: after the answer the stream may request the next run at once.
  store(call.request, 0);
  call.fn(call.data);
  store(call.answer, 1);
  count_down(p.expected[cpu]);
  if (cpu) cpu::values_changed();
}

// Runs the requested calls. Returns whether there were any.
bool run_requests(Poller &p) {
  bool has_run = false;
  for (auto &slot : p.pages) {
    const Page *page = slot.load(std::memory_order_acquire);
    if (!page) break;
    const unsigned used = page->used.load(std::memory_order_acquire);
    for (unsigned i = 0; i < used; ++i) {
      if (!load(&page->words->requests[i])) continue;
      run(p, page->calls[i]);
      has_run = true;
    }
  }
  return has_run;
}

bool is_expecting(const Poller &p) { return p.expected[0].load() > 0 || p.expected[1].load() > 0; }

// Sleeps until the number of launches differs from `seen`, for at most `limit`. If no call exists, sleeps until one
// does or a launch comes.
void sleep(Poller &p, std::uint64_t seen, std::chrono::nanoseconds limit) {
  std::unique_lock lock(p.mutex);
  p.asleep.store(true);
  const auto is_launched = [&p, seen] { return p.launches.load() != seen; };
  // Without calls there is nothing to poll, so wait without a limit.
  if (p.live.load() <= 0)
    p.wake.wait(lock, [&] { return is_launched() || p.live.load() > 0; });
  else
    p.wake.wait_for(lock, limit, is_launched);
  p.asleep.store(false);
}

// Yields or sleeps after `quiet` time without requests and launches.
void idle(Poller &p, std::uint64_t launches, std::chrono::nanoseconds quiet) {
  if (!is_expecting(p))
    sleep(p, launches, kMaxNap);
  else if (quiet < (p.expected[0].load() > 0 ? kSpinForCuda : kSpinForCpu))
    std::this_thread::yield();  // there may be more threads with work than cores
  else
    sleep(p, launches, std::clamp<std::chrono::nanoseconds>(quiet / 32, kLeastNap, kMaxNap));
}

void poll(Poller &p) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  Clock::time_point quiet_since = Clock::now();
  std::uint64_t launches = 0;
  for (unsigned rounds = 1;; ++rounds) {
    const std::uint64_t launched = p.launches.load();
    if (run_requests(p) || launched != launches) {
      launches = launched;
      quiet_since = Clock::now();
    } else if (rounds % 64 != 0) {
      pause_briefly();
    } else {
      idle(p, launches, Clock::now() - quiet_since);
    }
  }
}

// Starts the thread, once. False if it cannot be started.
bool start(Poller &p) {
  if (p.started.load()) return true;
  std::lock_guard lock(p.mutex);
  if (p.started.load()) return true;
  try {
    std::thread(poll, std::ref(p)).detach();
  } catch (const std::system_error &) {
    return false;
  }
  p.started.store(true);
  return true;
}

// No wake-up is lost: the sleeper sets `asleep` and then reads the counts of launches and calls, while a caller changes
// a count and then reads `asleep`.
void wake(Poller &p) {
  if (!p.asleep.load()) return;
  std::lock_guard lock(p.mutex);
  p.wake.notify_one();
}

CUresult allocate(const Driver &driver, Words *&words, CUdeviceptr &device) {
  void *memory = nullptr;
  if (driver.cuMemHostAlloc) {
    if (CUresult r = ensure_context(driver)) return r;
    if (CUresult r =
            driver.cuMemHostAlloc(&memory, sizeof(Words), CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP))
      return r;
    if (CUresult r = driver.cuMemHostGetDevicePointer(&device, memory, 0)) return r;
  } else {
    memory = ::operator new(sizeof(Words), std::align_val_t(64), std::nothrow);
    if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
    device = reinterpret_cast<CUdeviceptr>(memory);
  }
  words = new (memory) Words{};
  return CUDA_SUCCESS;
}

// Adds a page of calls. It is never freed: it is small, and a graph may use its words at any time.
CUresult add_page(Poller &p, const Driver &driver) {
  auto free = p.pages.begin();
  while (free != p.pages.end() && free->load()) ++free;
  if (free == p.pages.end()) return CUDA_ERROR_OUT_OF_MEMORY;
  Words *words = nullptr;
  CUdeviceptr device = 0;
  if (CUresult r = allocate(driver, words, device)) return r;
  auto *page = new Page{&driver, words, {}, {}};
  for (unsigned i = 0; i < kCalls; ++i) {
    PolledCall &call = page->calls[i];
    call.driver = &driver;
    call.request = &words->requests[i];
    call.answer = &words->answers[i];
    call.request_at = device + offsetof(Words, requests) + i * sizeof(cuuint32_t);
    call.answer_at = device + offsetof(Words, answers) + i * sizeof(cuuint32_t);
  }
  free->store(page, std::memory_order_release);
  return CUDA_SUCCESS;
}

unsigned count_free(const Poller &p, const Driver &driver) {
  unsigned free = 0;
  for (const auto &slot : p.pages) {
    const Page *page = slot.load(std::memory_order_acquire);
    if (!page || page->driver != &driver) continue;
    for (const PolledCall &call : page->calls) free += !call.taken.load(std::memory_order_relaxed);
  }
  return free;
}

}  // namespace

bool can_poll(const Driver &driver, const char **why) {
  const char *unused;
  const char *&reason = why ? *why : unused;
  reason = "the driver has no stream memory operations";
  if (!driver.cuStreamWriteValue32 || !driver.cuStreamWaitValue32) return false;
  if (is_cpu(driver)) return true;
  if (!driver.cuDeviceGetAttribute || !driver.cuMemHostAlloc || !driver.cuMemHostGetDevicePointer) return false;
  // The attribute for 32-bit operations is deprecated. A device that supports 64-bit ones supports 32-bit ones too.
  CUdevice device = 0;
  int can = 0;
  reason = "the device has no stream memory operations";
  return driver.cuDeviceGet(&device, used_device()) == CUDA_SUCCESS &&
         driver.cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device) == CUDA_SUCCESS &&
         can != 0;
}

CUresult prepare_polling(const Driver &driver) {
  if (!can_poll(driver)) return CUDA_ERROR_NOT_SUPPORTED;
  Poller &p = poller();
  if (!start(p)) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard lock(p.mutex);
  return count_free(p, driver) < kCalls / 2 ? add_page(p, driver) : CUDA_SUCCESS;
}

PolledCall *new_polled_call(const Driver &driver, CUhostFn fn, void *data) {
  Poller &p = poller();
  for (auto &slot : p.pages) {
    Page *page = slot.load(std::memory_order_acquire);
    if (!page || page->driver != &driver) continue;
    for (unsigned i = 0; i < kCalls; ++i) {
      PolledCall &call = page->calls[i];
      bool taken = false;
      if (call.taken.load(std::memory_order_relaxed) || !call.taken.compare_exchange_strong(taken, true)) continue;
      call.fn = fn;
      call.data = data;
      unsigned used = page->used.load();
      while (used <= i && !page->used.compare_exchange_weak(used, i + 1)) {
      }
      p.live.fetch_add(1);
      wake(p);
      return &call;
    }
  }
  return nullptr;
}

void free_polled_call(PolledCall *call) {
  store(call->request, 0);
  store(call->answer, 0);
  call->taken.store(false, std::memory_order_release);
  poller().live.fetch_sub(1);
}

CUresult launch_polled(CUstream stream, const PolledCall &call, const char *name) {
  const Driver &d = *call.driver;
  const auto label = [&](const char *what) {
    if (is_cpu(d)) cpu::label_next((std::string(name) + what).c_str());
  };
  label(": request");
  if (CUresult r = d.cuStreamWriteValue32(stream, call.request_at, 1, CU_STREAM_WRITE_VALUE_DEFAULT)) return r;
  label("");
  const CUresult waited = d.cuStreamWaitValue32(stream, call.answer_at, 1, CU_STREAM_WAIT_VALUE_EQ);
  // The stream itself resets the answer, so that the next replay waits again.
  label(": reset");
  const CUresult reset =
      waited ? waited : d.cuStreamWriteValue32(stream, call.answer_at, 0, CU_STREAM_WRITE_VALUE_DEFAULT);
  // Some of the three operations were captured, so the graph must not be launched. Do not return NOT_SUPPORTED, which
  // means that nothing was captured.
  return reset == CUDA_ERROR_NOT_SUPPORTED ? CUDA_ERROR_UNKNOWN : reset;
}

void expect_polled(const Driver &driver, std::int64_t runs) {
  Poller &p = poller();
  std::atomic<std::int64_t> &expected = p.expected[is_cpu(driver)];
  if (runs > 0) {
    expected.fetch_add(runs);
    p.launches.fetch_add(1);
    start(p);  // for a forked child
    wake(p);
  } else {
    for (; runs < 0; ++runs) count_down(expected);
  }
}

bool drain_polled(double seconds) {
  Poller &p = poller();
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (p.expected[0].load() > 0) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace weft
