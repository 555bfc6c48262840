#include "hostfunc/watchdog.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "hostfunc/gil.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;
using Phase = GilWatch::Phase;

// The total time by which the watchdog overslept. The process did not run then, so it does not count as waiting.
std::atomic<std::int64_t> paused{0};

std::int64_t now() { return Clock::now().time_since_epoch().count() - paused.load(std::memory_order_relaxed); }

double seconds_between(std::int64_t from, std::int64_t to) {
  return std::chrono::duration<double>(Clock::duration(to - from)).count();
}

// The state of one thread. Its mutex keeps `name` alive while the watchdog copies it.
struct ThreadRecord {
  ThreadRecord();
  ~ThreadRecord();
  std::mutex mutex;
  const char *name = nullptr;  // null: in no callback
  const char *driver = "";
  Phase phase = Phase::kWaiting;
  std::int64_t since = 0;
  double next_report = 0;  // seconds of waiting; 0: the limit
};

struct Watchdog {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<ThreadRecord *> records;
  double limit = 10;
  int signal = 0;
  bool started = false;
  std::condition_variable asked;
  std::int64_t asking_since = 0;  // when the second thread began to wait for the GIL; 0: it does not wait
};

// Never destroyed: threads may outlive the statics of this library.
Watchdog &watchdog() {
  static Watchdog &it = *new Watchdog;
  return it;
}

ThreadRecord::ThreadRecord() {
  Watchdog &dog = watchdog();
  std::lock_guard lock(dog.mutex);
  dog.records.push_back(this);
}

ThreadRecord::~ThreadRecord() {
  Watchdog &dog = watchdog();
  std::lock_guard lock(dog.mutex);
  dog.records.erase(std::remove(dog.records.begin(), dog.records.end(), this), dog.records.end());
}

ThreadRecord &thread_record() {
  thread_local ThreadRecord record;
  return record;
}

void write_stderr(const char *text, int length) {
  while (length > 0) {
    const ssize_t written = write(STDERR_FILENO, text, static_cast<size_t>(length));
    if (written <= 0) return;
    text += written;
    length -= static_cast<int>(written);
  }
}

// Raises faulthandler's signal on this thread if the signal has a handler: its default action would end the process.
bool print_stacks(int signal) {
  struct sigaction action {};
  if (signal == 0 || sigaction(signal, nullptr, &action) != 0) return false;
  if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) return false;
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  return pthread_kill(pthread_self(), signal) == 0;
}

// Returns how many seconds the callback of `record` has waited for the GIL. For a callback inside Python, this is how
// long the second thread has waited meanwhile. It began at `asking_since`; 0: it does not wait.
double kept_waiting(const ThreadRecord &record, std::int64_t asking_since) {
  if (!record.name) return 0;
  if (record.phase == Phase::kWaiting) return seconds_between(record.since, now());
  return asking_since == 0 ? 0 : seconds_between(std::max(record.since, asking_since), now());
}

// Reports `record` if its wait is over the limit. Returns whether it did.
bool report(ThreadRecord &record, double limit, std::int64_t asking_since) {
  char text[640];
  int length = 0;
  {
    std::lock_guard lock(record.mutex);
    const double waited = kept_waiting(record, asking_since);
    if (waited < std::max(limit, record.next_report) || waited == 0) return false;
    record.next_report = 2 * waited;
    const char *what = record.phase == Phase::kWaiting ? "has waited %.1f s for the GIL"
                                                       : "is inside Python, and the GIL has not been free for %.1f s";
    char state[80];
    std::snprintf(state, sizeof state, what, waited);
    length = std::snprintf(text, sizeof text,
                           "weft: host function %.300s (%s driver) %s. A thread that holds "
                           "the GIL probably waits for the device; see the stacks below and docs/hostfunc.md.\n",
                           record.name, record.driver, state);
  }
  write_stderr(text, std::min(length, static_cast<int>(sizeof text) - 1));
  return true;
}

void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

// Whether a callback has been inside Python for `seconds`. Then the second thread must ask for the GIL.
bool stays_inside(ThreadRecord &record, double seconds) {
  std::lock_guard lock(record.mutex);
  return record.name && record.phase == Phase::kInside && seconds_between(record.since, now()) >= seconds;
}

// The second thread's main function: takes the GIL on request, while the watchdog measures how long that takes.
void ask() {
  block_signals();
  Watchdog &dog = watchdog();
  for (;;) {
    {
      std::unique_lock lock(dog.mutex);
      dog.asked.wait(lock, [&] { return dog.asking_since != 0; });
    }
    {
      GilForCallback gil(nullptr, nullptr);
      if (!gil) return;
    }
    std::lock_guard lock(dog.mutex);
    dog.asking_since = 0;
  }
}

void watch() {
  block_signals();
  Watchdog &dog = watchdog();
  std::unique_lock lock(dog.mutex);
  for (;;) {
    if (dog.limit <= 0) {
      dog.changed.wait(lock);
      continue;
    }
    const double look = std::min(dog.limit / 4, 1.0);
    const std::int64_t before = now();
    dog.changed.wait_for(lock, std::chrono::duration<double>(look));
    const auto meant = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(look)).count();
    const std::int64_t slept = now() - before;
    if (slept > 2 * meant) paused.fetch_add(slept - meant, std::memory_order_relaxed);
    if (dog.limit <= 0) continue;
    bool reported = false, inside = false;
    for (ThreadRecord *record : dog.records) {
      reported |= report(*record, dog.limit, dog.asking_since);
      inside |= stays_inside(*record, look);
    }
    if (reported) print_stacks(dog.signal);
    if (inside && dog.asking_since == 0) {
      dog.asking_since = now();
      dog.asked.notify_one();
    }
  }
}

}  // namespace

GilWatch::GilWatch(Phase phase, const char *name, const char *driver) {
  ThreadRecord &record = thread_record();
  std::lock_guard lock(record.mutex);
  phase_ = std::exchange(record.phase, phase);
  name_ = std::exchange(record.name, name);
  driver_ = std::exchange(record.driver, driver);
  since_ = std::exchange(record.since, now());
  next_report_ = std::exchange(record.next_report, 0);
}

GilWatch::~GilWatch() {
  ThreadRecord &record = thread_record();
  std::lock_guard lock(record.mutex);
  record.phase = phase_;
  record.name = name_;
  record.driver = driver_;
  record.since = since_;
  record.next_report = next_report_;
}

void set_watchdog(double seconds, int signal) {
  Watchdog &dog = watchdog();
  std::lock_guard lock(dog.mutex);
  dog.limit = seconds;
  dog.signal = signal;
  dog.changed.notify_all();
}

void start_watchdog() {
  Watchdog &dog = watchdog();
  std::lock_guard lock(dog.mutex);
  if (dog.started) return;
  dog.started = true;
  std::thread(watch).detach();
  std::thread(ask).detach();
}

}  // namespace weft
