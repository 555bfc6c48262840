#include "support/kernel_threads.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace weft {
namespace {

struct Job {
  RowFunction fn;
  void *context;
  std::int64_t rows, chunk;
  std::atomic<std::int64_t> next{0};

  void work() {
    for (;;) {
      const std::int64_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
      if (begin >= rows) return;
      fn(context, begin, std::min(begin + chunk, rows));
    }
  }
};

class RowPool {
 public:
  bool try_run(Job &job, int helpers) {
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn) return false;
    grow(helpers);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      places_ = std::min(helpers, size_);
    }
    wake_.notify_all();
    job.work();
    std::unique_lock<std::mutex> lock(mutex_);
    places_ = 0;  // a helper that has not come by now need not come
    done_.wait(lock, [this] { return active_ == 0; });
    return true;
  }

 private:
  void grow(int wanted) {
    for (; size_ < wanted; ++size_) {
      try {
        std::thread(&RowPool::help, this).detach();
      } catch (const std::system_error &) {
        return;  // the process may have no more threads: the caller does the work
      }
    }
  }

  void help() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return places_ > 0; });
      --places_;
      ++active_;
      Job *job = job_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--active_ == 0) done_.notify_one();
    }
  }

  std::mutex turn_;  // held by the call that has the helpers
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job *job_ = nullptr;
  int places_ = 0, active_ = 0;
  int size_ = 0;
};

std::atomic<RowPool *> g_pool{nullptr};

// Never destroyed: its detached threads outlive static destruction. A forked child has none of them, so it starts anew.
RowPool &pool() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { g_pool.store(nullptr); });
  (void)registered;
  RowPool *current = g_pool.load();
  if (current) return *current;
  auto *fresh = new RowPool;
  if (g_pool.compare_exchange_strong(current, fresh)) return *fresh;
  delete fresh;
  return *current;
}

}  // namespace

void for_rows(std::int64_t rows, int threads, RowFunction fn, void *context) {
  if (threads > 1 && rows > 1) {
    const std::int64_t chunk = std::max<std::int64_t>(1, rows / (std::int64_t{threads} * 8));
    Job job{fn, context, rows, chunk};
    const int helpers = static_cast<int>(std::min<std::int64_t>(threads, rows)) - 1;
    if (pool().try_run(job, helpers)) return;
  }
  if (rows > 0) fn(context, 0, rows);
}

}  // namespace weft
