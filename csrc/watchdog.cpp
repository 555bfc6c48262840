#include "watchdog.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

// What one thread waits for. Its mutex keeps `name` alive while the watchdog copies it.
struct WaitRecord {
  WaitRecord();
  ~WaitRecord();
  std::mutex mutex;
  const char *name = nullptr;  // null: not waiting
  const char *driver = "";
  Clock::time_point since;
  double next_report = 0;  // seconds of waiting; 0: the limit
};

struct Watchdog {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<WaitRecord *> records;
  double limit = 10;
  int signal = 0;
  bool started = false;
};

// Never destroyed: threads may outlive the statics of this library.
Watchdog &watchdog() {
  static Watchdog &it = *new Watchdog;
  return it;
}

WaitRecord::WaitRecord() {
  Watchdog &dog = watchdog();
  std::lock_guard lock(dog.mutex);
  dog.records.push_back(this);
}

WaitRecord::~WaitRecord() {
  Watchdog &dog = watchdog();
  std::lock_guard lock(dog.mutex);
  dog.records.erase(std::remove(dog.records.begin(), dog.records.end(), this), dog.records.end());
}

WaitRecord &wait_record() {
  thread_local WaitRecord record;
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

// Raises on this thread the signal that faulthandler handles; the default action would end the process.
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

// Reports `record` if its wait is over the limit; returns whether it did.
bool report(WaitRecord &record, double limit) {
  char text[640];
  int length = 0;
  {
    std::lock_guard lock(record.mutex);
    if (!record.name) return false;
    const double waited = std::chrono::duration<double>(Clock::now() - record.since).count();
    if (waited < std::max(limit, record.next_report)) return false;
    record.next_report = 2 * waited;
    length = std::snprintf(text, sizeof text,
                           "weft: host function %.300s (%s driver) has waited %.1f s for the GIL. A thread that holds "
                           "the GIL probably waits for the device; see the stacks below and docs/hostfunc.md.\n",
                           record.name, record.driver, waited);
  }
  write_stderr(text, std::min(length, static_cast<int>(sizeof text) - 1));
  return true;
}

void watch() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  Watchdog &dog = watchdog();
  std::unique_lock lock(dog.mutex);
  for (;;) {
    if (dog.limit <= 0) {
      dog.changed.wait(lock);
      continue;
    }
    dog.changed.wait_for(lock, std::chrono::duration<double>(std::min(dog.limit / 4, 1.0)));
    if (dog.limit <= 0) continue;
    bool reported = false;
    for (WaitRecord *record : dog.records) reported |= report(*record, dog.limit);
    if (reported) print_stacks(dog.signal);
  }
}

}  // namespace

GilWait::GilWait(const char *name, const char *driver) {
  WaitRecord &record = wait_record();
  std::lock_guard lock(record.mutex);
  record.name = name;
  record.driver = driver;
  record.since = Clock::now();
  record.next_report = 0;
}

GilWait::~GilWait() {
  WaitRecord &record = wait_record();
  std::lock_guard lock(record.mutex);
  record.name = nullptr;
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
}

}  // namespace weft
