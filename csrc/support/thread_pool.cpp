#include "support/thread_pool.h"

#include <utility>

namespace weft {

WorkPool::WorkPool(int workers) {
  for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
}

WorkPool::~WorkPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  for (std::thread &thread : threads_) thread.join();
}

void WorkPool::share(int from, int count, std::function<void(int)> body) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    body_ = std::move(body);
    count_ = count;
    next_.store(from, std::memory_order_relaxed);
    ++round_;
  }
  wake_.notify_all();
  drain();
  // A worker that wakes late finds nothing left; one that is busy still holds an item.
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
  body_ = nullptr;
  count_ = 0;
}

void WorkPool::drain() {
  for (;;) {
    const int i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= count_) return;
    body_(i);
  }
}

void WorkPool::work() {
  std::uint64_t seen = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return closing_ || (round_ != seen && body_); });
    if (closing_) return;
    seen = round_;
    ++busy_;
    lock.unlock();
    drain();
    lock.lock();
    if (--busy_ == 0) done_.notify_one();
  }
}

}  // namespace weft
