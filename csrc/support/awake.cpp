#include "support/awake.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "support/timer.h"

namespace weft {
namespace {

constexpr int kIdleTicks = 100;  // the clock stops after a second without calls, unless it has listeners

class Ticker {
 public:
  void listen() {
    std::lock_guard<std::mutex> lock(mutex_);
    start();
    ++num_listeners_;
  }
  void leave() {
    std::lock_guard<std::mutex> lock(mutex_);
    --num_listeners_;
  }
  void wake() {
    std::lock_guard<std::mutex> lock(mutex_);
    start();
  }
  void end_process_at(std::int64_t ns) { end_at_ns_.store(ns, std::memory_order_relaxed); }
  std::int64_t now() const { return awake_ns_.load(std::memory_order_relaxed); }

 private:
  void start() {
    if (!has_thread_) {
      std::thread([this] { tick(); }).detach();
      has_thread_ = true;
    }
    if (awake::is_ticking.exchange(true)) return;
    changed_.notify_one();
  }

  [[noreturn]] void tick() {
    pthread_setname_np(pthread_self(), "weft-awake");
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [] { return awake::is_ticking.load(); });
      lock.unlock();
      int num_idle = 0;
      for (std::int64_t last = now_ns(); num_idle < kIdleTicks; ++num_idle) {
        std::this_thread::sleep_for(std::chrono::nanoseconds(kAwakeTickNs));
        const std::int64_t now = now_ns(), passed = now - last;
        last = now;
        add(passed <= 2 * kAwakeTickNs ? passed : kAwakeTickNs);
        if (awake::is_wanted.exchange(false, std::memory_order_relaxed)) num_idle = 0;
      }
      lock.lock();
      // Check `is_wanted` again: a call that has just set it saw the clock ticking, so it did not wake this thread.
      if (num_listeners_ == 0 && !awake::is_wanted.load()) awake::is_ticking.store(false);
    }
  }

  void add(std::int64_t ns) {
    const std::int64_t now = awake_ns_.load(std::memory_order_relaxed) + ns;
    awake_ns_.store(now, std::memory_order_relaxed);
    const std::int64_t end_at = end_at_ns_.load(std::memory_order_relaxed);
    if (end_at != 0 && now >= end_at) kill(getpid(), SIGALRM);
  }

  std::atomic<std::int64_t> awake_ns_{0}, end_at_ns_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_listeners_ = 0;
  bool has_thread_ = false;
};

// Never destroyed, because its thread uses it until the process exits. A forked child lacks that thread and makes a new
// ticker.
std::atomic<Ticker *> the_ticker{nullptr};

Ticker *make_ticker() {
  pthread_atfork(nullptr, nullptr, [] {
    awake::is_ticking.store(false);
    the_ticker.store(new Ticker);
  });
  return new Ticker;
}

Ticker &ticker() {
  if (Ticker *it = the_ticker.load(std::memory_order_acquire)) return *it;
  static const bool is_made = (the_ticker.store(make_ticker()), true);
  static_cast<void>(is_made);
  return *the_ticker.load();
}

}  // namespace

std::int64_t awake_ns() { return ticker().now(); }

AwakeWatch::AwakeWatch() : began_ns_((ticker().listen(), awake_ns())) {}

AwakeWatch::~AwakeWatch() { ticker().leave(); }

void end_process_after(std::int64_t ns) {
  // The listener is never removed, so the clock keeps ticking. Such a process has no other use for the clock.
  if (ns > 0) ticker().listen();
  ticker().end_process_at(ns > 0 ? awake_ns() + ns : 0);
}

void awake::begin_ticking() noexcept {
  try {
    ticker().wake();
  } catch (...) {  // without a thread the clock does not advance, and no wait is too long
  }
}

}  // namespace weft
