#include "support/kernel_threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "support/pause.h"

namespace weft {
namespace {

// Limits in units of cost. Below kMinCostForHelpers a call is faster on the caller alone. Below kMinCostToWake, waking
// a sleeping helper costs more than it gains. kMinCostOfRange is the smallest range worth claiming.
constexpr std::int64_t kMinCostForHelpers = 30'000, kMinCostToWake = 400'000, kMinCostOfRange = 20'000;
// A helper without work spins for kSpin, the host's time between two iterations, and then sleeps. After kSpinAlone, the
// time between two nodes of a graph, it offers its core to others at each turn. Otherwise it may take the core from its
// own caller, which the scheduler moves there if another program is busy on the caller's core.
constexpr auto kSpin = std::chrono::microseconds(200), kSpinAlone = std::chrono::microseconds(20);
// At the end the caller spins until the helpers are done, for at most kPatience plus the time of kPatientRanges of its
// own ranges. Then it yields its core.
constexpr auto kPatience = std::chrono::microseconds(50);
constexpr int kPatientRanges = 2;
// After such a long wait, calls use no helpers for kAlone times the wait, but at most for kLongestAlone.
constexpr int kAlone = 2;
constexpr auto kLongestAlone = std::chrono::milliseconds(100);

using Clock = std::chrono::steady_clock;

}  // namespace

class Team {
 public:
  bool try_run(StealingQueue &queue, WorkFunction fn, void *context, int helpers, bool wakes) {
    if (has_stalled_.load(std::memory_order_relaxed) && stays_alone()) return false;
    if (taken_.test_and_set(std::memory_order_acquire)) return false;
    grow(helpers);
    job_.queue.store(&queue, std::memory_order_relaxed);
    job_.fn.store(fn, std::memory_order_relaxed), job_.context.store(context, std::memory_order_relaxed);
    job_.helpers.store(helpers, std::memory_order_relaxed);
    const std::uint64_t open = job_.open.load(std::memory_order_relaxed) + 1;  // odd: there is a job
    if (wakes) {
      job_.open.store(open);
      if (sleeping_.load() > 0) wake();
    } else {
      job_.open.store(open, std::memory_order_release);  // does not wait for the cache line
    }
    const auto begun = Clock::now();
    Share mine(queue, 0);
    fn(context, mine);
    job_.open.store(open + 1);  // even: helpers that have not started yet will not
    wait_for_helpers(begun, mine.count());
    taken_.clear(std::memory_order_release);
    return true;
  }

  bool is_awake() const { return size_.load() > 0 && sleeping_.load() == 0; }

  bool show(Offer &offer) {
    if (Clock::now().time_since_epoch().count() < hidden_until_.load(std::memory_order_relaxed)) return false;
    Offer *none = nullptr;
    return offer_.compare_exchange_strong(none, &offer);
  }

  // After this no helper begins to work on the offer.
  void hide() {
    offer_.store(nullptr);
    while (looking_.load() != 0) pause_briefly();
  }

  // Waits until no helper works on the offer. After a long wait for one, which may have been preempted, no offer is
  // shown for a while.
  void wait_for_offer(const std::atomic<int> &active) {
    const auto begun = Clock::now();
    while (active.load() != 0) {
      pause_briefly();
      if (Clock::now() - begun > kPatience) sched_yield();
    }
    const auto waited = Clock::now() - begun;
    if (waited <= kPatience) return;
    const auto hidden = std::min<Clock::duration>(kAlone * waited, kLongestAlone);
    hidden_until_.store((begun + waited + hidden).time_since_epoch().count(), std::memory_order_relaxed);
  }

 private:
  // Waits until all helpers are done. A helper that was preempted by another program delays the call. After that, calls
  // use no helpers for a while, so that only preemption of the caller itself delays them.
  void wait_for_helpers(Clock::time_point job_begun, int num_ranges) {
    if (active_.load() == 0) return;
    const auto begun = Clock::now();
    const auto patience = kPatience + kPatientRanges * (begun - job_begun) / std::max(num_ranges, 1);
    auto now = begun;
    while (active_.load() != 0) {
      pause_briefly();
      now = Clock::now();
      if (now - begun > patience) sched_yield();
    }
    if (now - begun <= patience) return;
    const auto alone = std::min<Clock::duration>(kAlone * (now - begun), kLongestAlone);
    alone_until_.store((now + alone).time_since_epoch().count(), std::memory_order_relaxed);
    has_stalled_.store(true, std::memory_order_relaxed);
  }

  bool stays_alone() {
    if (Clock::now().time_since_epoch().count() < alone_until_.load(std::memory_order_relaxed)) return true;
    has_stalled_.store(false, std::memory_order_relaxed);
    return false;
  }

  void wake() {
    std::lock_guard<std::mutex> lock(mutex_);
    awake_.notify_all();
  }

  void grow(int wanted) {
    for (; size_.load(std::memory_order_relaxed) < wanted; ++size_) {
      try {
        std::thread(&Team::help, this, size_.load(std::memory_order_relaxed) + 1).detach();
      } catch (const std::system_error &) {
        return;  // the process may not have more threads; the caller does the work
      }
    }
  }

  // The work of a helper, whose place among the workers is from 1 on.
  void help(int place) {
    std::uint64_t done = 0;
    for (;;) {
      const std::uint64_t open = wait_for_job(done);
      done = open;
      if (place > job_.helpers.load(std::memory_order_relaxed)) continue;
      // The prefetches overlap with the wait for the line of `active_`. By now the job may be another one, or over.
      job_.queue.load(std::memory_order_relaxed)->prefetch(place);
      __builtin_prefetch(job_.context.load(std::memory_order_relaxed));
      active_.fetch_add(1);
      // If the caller closes the job after this increment, it sees `active_` and waits. If it closed the job before,
      // `open` has changed, and the job must not be touched.
      if (job_.open.load() == open) {
        Share mine(*job_.queue.load(std::memory_order_relaxed), place);
        job_.fn.load(std::memory_order_relaxed)(job_.context.load(std::memory_order_relaxed), mine);
      }
      active_.fetch_sub(1);
    }
  }

  // Works on the offer that is shown. False if there is none, or it has no place left.
  bool take_offer() {
    looking_.fetch_add(1);
    // `hide` clears `offer_` and then waits for `looking_`, so the offer lives until this thread is counted as active.
    Offer *offer = offer_.load();
    const int place = offer && offer->places_.load(std::memory_order_relaxed) > 0
                          ? offer->places_.fetch_sub(1, std::memory_order_relaxed)
                          : 0;
    if (place > 0) offer->active_.fetch_add(1);
    looking_.fetch_sub(1);
    if (place <= 0) return false;
    offer->work(place);
    offer->active_.fetch_sub(1);
    return true;
  }

  std::uint64_t wait_for_job(std::uint64_t done) {
    const auto is_new = [this, done] {
      const std::uint64_t open = job_.open.load();
      return open % 2 == 1 && open != done ? open : 0;
    };
    auto begun = Clock::now();
    for (int spin = 1;; ++spin) {
      if (const std::uint64_t open = is_new()) return open;
      if (offer_.load() && take_offer()) begun = Clock::now();
      pause_briefly();
      if (spin % 16 != 0) continue;
      const auto passed = Clock::now() - begun;
      if (passed > kSpin) break;
      if (passed > kSpinAlone) sched_yield();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleeping_.fetch_add(1);
    std::uint64_t open = 0;
    awake_.wait(lock, [&] { return (open = is_new()) != 0; });
    sleeping_.fetch_sub(1);
    return open;
  }

  // The call that uses the helpers, in one cache line. Only the caller writes it. All but `open` is meaningless while
  // `open` is even.
  struct alignas(64) Job {
    std::atomic<std::uint64_t> open{0};  // counts the beginnings and the ends of calls
    std::atomic<StealingQueue *> queue{nullptr};
    std::atomic<WorkFunction> fn{nullptr};
    std::atomic<void *> context{nullptr};
    std::atomic<int> helpers{0};  // that may join
  };

  std::atomic_flag taken_ = ATOMIC_FLAG_INIT;  // a call is using the helpers
  std::atomic<int> size_{0};
  Job job_;
  alignas(64) std::atomic<int> active_{0};
  alignas(64) std::atomic<int> sleeping_{0};
  std::atomic<bool> has_stalled_{false};
  std::atomic<Clock::rep> alone_until_{0};
  alignas(64) std::atomic<Offer *> offer_{nullptr};  // the offer that helpers see
  std::atomic<int> looking_{0};                      // helpers that are reading `offer_`
  std::atomic<Clock::rep> hidden_until_{0};
  std::mutex mutex_;
  std::condition_variable awake_;
};

namespace {

std::atomic<Team *> g_team{nullptr};

// Returns this process's team. It is never destroyed, because its detached threads outlive static destruction. A forked
// child lacks those threads, so it makes a new team.
Team &team() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { g_team.store(nullptr); });
  (void)registered;
  Team *current = g_team.load();
  if (current) return *current;
  auto *fresh = new Team;
  if (g_team.compare_exchange_strong(current, fresh)) return *fresh;
  delete fresh;
  return *current;
}

}  // namespace

void for_workers(std::int64_t rows, int threads, std::int64_t cost, WorkFunction fn, void *context) {
  if (rows <= 0) return;
  const std::int64_t total = rows * cost;
  if (threads > 1 && rows > 1 && total >= kMinCostForHelpers) {
    const int helpers = static_cast<int>(std::min<std::int64_t>({threads, rows, StealingQueue::kMaxWorkers})) - 1;
    const std::int64_t min_rows = std::max<std::int64_t>(kMinCostOfRange / std::max<std::int64_t>(cost, 1), 1);
    const std::int64_t even_share = (rows + helpers) / (helpers + 1);
    StealingQueue queue(rows, std::min(min_rows, even_share), helpers + 1);
    if (team().try_run(queue, fn, context, helpers, total >= kMinCostToWake)) return;
  }
  StealingQueue queue(rows, rows, 1);
  Share mine(queue, 0);
  fn(context, mine);
}

bool helpers_are_awake() { return team().is_awake(); }

void Offer::open(int count, int helpers, std::function<void(int)> fn) {
  helpers = std::min({helpers, std::max(count, 1), StealingQueue::kMaxWorkers - 1});
  fn_ = std::move(fn);
  queue_.emplace(count, 1, helpers + 1);
  places_.store(helpers, std::memory_order_relaxed);
  is_open_ = true;
  Team &current = team();
  team_ = current.show(*this) ? &current : nullptr;
}

void Offer::close(bool finishes) {
  if (!is_open_) return;
  is_open_ = false;
  // A forked child has another team, without the helpers that its parent's offer was shown to.
  Team *shown_to = team_ == &team() ? team_ : nullptr;
  if (shown_to) shown_to->hide();
  if (finishes) {
    work(0);
  } else {
    for (std::int64_t begin, end; queue_->next(0, begin, end);) continue;
  }
  if (shown_to) shown_to->wait_for_offer(active_);
}

void Offer::work(int worker) {
  for (std::int64_t begin, end; queue_->next(worker, begin, end);)
    for (std::int64_t item = begin; item < end; ++item) fn_(static_cast<int>(item));
}

}  // namespace weft
