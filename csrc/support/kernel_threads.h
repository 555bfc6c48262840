// Parallel loops of the CPU kernels over a team of a few persistent threads, with work stealing.
//
// The caller works too, and helpers take only unclaimed rows. So the caller never waits for a helper that starts late,
// but it waits for one that is preempted in the middle of its rows. After such a wait, calls use no helpers for a
// while.
//
// After a call, a helper spins for about the host's time between two iterations, and then sleeps. So a helper is woken
// at most once per iteration. While it spins, other threads may take its core. The team serves one call at a time; a
// call that finds it in use runs on its caller alone. Results must not depend on the assignment of rows to threads.
// Safe after fork.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

namespace weft {

// The rows of a call, claimed with work stealing. Each worker has its own part and claims it in order, range by range,
// so that it reads memory in order. A worker without rows steals the second half of another worker's remaining rows.
class StealingQueue {
 public:
  static constexpr int kMaxWorkers = 64;

  // `rows` < 2^32. A range has at least `min_rows`, or all that are left of a part. 1 <= `workers` <= kMaxWorkers.
  StealingQueue(std::int64_t rows, std::int64_t min_rows, int workers) {
    for (int w = 0; w < workers; ++w) {
      parts_[w].min_rows = min_rows, parts_[w].workers = workers;
      parts_[w].left.store({bound(rows, w, workers), bound(rows, w + 1, workers)}, std::memory_order_relaxed);
    }
  }
  bool next(int worker, std::int64_t &begin, std::int64_t &end) {
    return take(worker, begin, end) || steal(worker, begin, end);
  }
  // Prefetches the part of a worker. The queue need not exist any more.
  void prefetch(int worker) const { __builtin_prefetch(&parts_[worker], 1); }

 private:
  struct Range {
    std::uint32_t begin, end;
    std::int64_t size() const { return static_cast<std::int64_t>(end) - begin; }
  };
  // A cache line holds all that a worker needs: loading a line that another core has written takes 100 ns and more.
  struct alignas(64) Part {
    std::atomic<Range> left;
    std::int64_t min_rows;
    int workers;
  };
  static_assert(std::atomic<Range>::is_always_lock_free);

  // The first row of a worker's part.
  static std::uint32_t bound(std::int64_t rows, int worker, int workers) {
    return static_cast<std::uint32_t>(rows * worker / workers);
  }

  bool take(int worker, std::int64_t &begin, std::int64_t &end) {
    std::atomic<Range> &rest = parts_[worker].left;
    const std::int64_t min_rows = parts_[worker].min_rows;
    for (Range left = rest.load(); left.size() > 0;) {
      const auto taken = static_cast<std::uint32_t>(std::min(std::max(min_rows, left.size() / kPieces), left.size()));
      if (!rest.compare_exchange_weak(left, {left.begin + taken, left.end})) continue;
      begin = left.begin, end = left.begin + taken;
      return true;
    }
    return false;
  }

  bool steal(int worker, std::int64_t &begin, std::int64_t &end) {
    const std::int64_t min_rows = parts_[worker].min_rows;
    const int workers = parts_[worker].workers;
    for (int other = worker + 1; other < worker + workers; ++other) {
      std::atomic<Range> &theirs = parts_[other % workers].left;
      for (Range left = theirs.load(); left.size() > 0;) {
        const auto taken = static_cast<std::uint32_t>(std::min(std::max(min_rows, (left.size() + 1) / 2), left.size()));
        if (!theirs.compare_exchange_weak(left, {left.begin, left.end - taken})) continue;
        parts_[worker].left.store({left.end - taken, left.end});  // no thread steals from it while it is empty
        if (take(worker, begin, end)) return true;
        break;  // another worker stole all of it
      }
    }
    return false;
  }

  static constexpr std::int64_t kPieces = 8;  // a range is 1 / kPieces of the rest, so ranges shrink towards the end
  Part parts_[kMaxWorkers];
};

// One worker's view of the queue.
class Share {
 public:
  Share(StealingQueue &queue, int worker) : queue_(queue), worker_(worker) {}

  // Claims rows begin..end-1. Returns false if no rows are left.
  bool next(std::int64_t &begin, std::int64_t &end) {
    const bool has_rows = queue_.next(worker_, begin, end);
    count_ += has_rows;
    return has_rows;
  }
  // The number of ranges that it claimed.
  int count() const { return count_; }

 private:
  StealingQueue &queue_;
  const int worker_;
  int count_ = 0;
};

using WorkFunction = void (*)(void *context, Share &share);

// Calls fn(context, share) on at most `threads` threads, including the caller. Together they claim rows [0, rows).
// There are at most StealingQueue::kMaxWorkers threads. `cost` estimates the cost of one row in units of about 1/20 ns,
// the time to read one byte from memory or to compute one product.
void for_workers(std::int64_t rows, int threads, std::int64_t cost, WorkFunction fn, void *context);

template <class F>
void for_workers(std::int64_t rows, int threads, std::int64_t cost, F &&fn) {
  using Fn = std::remove_reference_t<F>;
  for_workers(rows, threads, cost, [](void *f, Share &share) { (*static_cast<Fn *>(f))(share); }, &fn);
}

// Calls fn(begin, end) over disjoint ranges that cover [0, rows).
template <class F>
void for_rows(std::int64_t rows, int threads, std::int64_t cost, F &&fn) {
  for_workers(rows, threads, cost, [&fn](Share &share) {
    for (std::int64_t begin, end; share.next(begin, end);) fn(begin, end);
  });
}

// Whether a helper is awake and would join a call at once.
bool helpers_are_awake();

// Work that helpers may do while its owner goes on with something else. Only helpers that are awake take items, and a
// call of `for_workers` in the meantime runs without them. One offer in the process is open to helpers at a time; the
// items of another are left to its owner. All calls are the owner's, which may be different threads if they are
// ordered.
class Offer {
 public:
  Offer() = default;
  Offer(const Offer &) = delete;
  Offer &operator=(const Offer &) = delete;
  ~Offer() { close(false); }

  // Offers `fn(item)` for each item in [0, count) to at most `helpers` threads, and returns at once. Not while open.
  void open(int count, int helpers, std::function<void(int item)> fn);
  // Returns when no thread works on the offer. With `finishes`, the caller does all items that no helper has taken;
  // else they are not done. Does nothing if it is not open.
  void close(bool finishes);
  bool is_open() const { return is_open_; }

 private:
  friend class Team;

  // Does the items of a worker, and of others, until none is left. Worker 0 is the owner.
  void work(int worker);

  bool is_open_ = false;
  std::function<void(int)> fn_;
  std::optional<StealingQueue> queue_;  // so that the same items usually go to the same thread, whose caches have them
  class Team *team_ = nullptr;
  std::atomic<int> places_{0}, active_{0};
};

}  // namespace weft
