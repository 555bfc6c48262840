// Threads that help with the items of one phase when it turns out long. Python-free.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace weft {

class WorkPool {
 public:
  explicit WorkPool(int workers);
  ~WorkPool();
  WorkPool(const WorkPool &) = delete;
  WorkPool &operator=(const WorkPool &) = delete;

  // Calls `body(i)` once for each i in [0, count), in no particular order, and returns when all are done. The caller
  // works too; the others are woken once the first items have taken longer than a hand-off costs.
  template <class Body>
  void for_each(int count, Body &&body) {
    if (threads_.empty() || count < 3) {
      for (int i = 0; i < count; ++i) body(i);
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    int i = 0;
    while (i < count && std::chrono::steady_clock::now() - start < kHandOff) body(i++);
    if (count - i < 2) {
      while (i < count) body(i++);
      return;
    }
    share(i, count, std::function<void(int)>(std::ref(body)));
  }

 private:
  static constexpr std::chrono::microseconds kHandOff{50};

  void share(int from, int count, std::function<void(int)> body);
  void work();
  void drain();

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::function<void(int)> body_;
  std::atomic<int> next_{0};
  int count_ = 0, busy_ = 0;
  std::uint64_t round_ = 0;
  bool closing_ = false;
};

}  // namespace weft
