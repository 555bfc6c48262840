#include "aici/host/guest_pool.h"

#include <pthread.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <string>

#include "aici/base/limits.h"
#include "support/thread_time.h"

namespace weft::aici {
namespace {

// A call of `run_as_guest`, on the stack of the thread that waits for it.
struct Job {
  const std::function<void()> *work;
  std::exception_ptr raised;
  std::mutex mutex;
  std::condition_variable done_changed;
  bool done = false;
  std::int64_t work_ns = 0;
};

class Pool {
 public:
  void run(Job &job) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      jobs_.push_back(&job);
      if (idle_ < jobs_.size()) {
        try {
          start_thread();
        } catch (...) {
          if (num_threads_ == 0) {  // else a busy thread will take the job later
            jobs_.pop_back();
            throw;
          }
        }
      }
    }
    wake_.notify_one();
    std::unique_lock<std::mutex> lock(job.mutex);
    job.done_changed.wait(lock, [&] { return job.done; });
  }

 private:
  void start_thread() {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, kGuestThreadStack);
    pthread_t thread;
    const int problem = pthread_create(
        &thread, &attributes,
        [](void *pool) -> void * {
          pthread_setname_np(pthread_self(), "weft-guest");
          static_cast<Pool *>(pool)->work();
          return nullptr;
        },
        this);
    pthread_attr_destroy(&attributes);
    if (problem != 0) throw ProgramError(std::string("no thread for programs: ") + std::strerror(problem));
    ++num_threads_;
  }

  [[noreturn]] void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      ++idle_;
      wake_.wait(lock, [this] { return !jobs_.empty(); });
      --idle_;
      Job *job = jobs_.front();
      jobs_.pop_front();
      lock.unlock();
      const std::int64_t began_ns = thread_cpu_ns();
      try {
        (*job->work)();
      } catch (...) {
        job->raised = std::current_exception();
      }
      job->work_ns = thread_cpu_ns() - began_ns;
      {
        // Notify under the lock, because the waiter destroys the job as soon as it sees `done`.
        std::lock_guard<std::mutex> done_lock(job->mutex);
        job->done = true;
        job->done_changed.notify_one();
      }
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job *> jobs_;
  std::size_t idle_ = 0, num_threads_ = 0;
};

// Never destroyed, because its threads wait in it until the process ends.
Pool &pool() {
  static Pool &pool = *new Pool;
  return pool;
}

}  // namespace

void run_as_guest(const std::function<void()> &work) {
  Job job{&work, nullptr, {}, {}, false, 0};
  pool().run(job);
  worked_for_thread_ns += job.work_ns;
  if (job.raised) std::rethrow_exception(job.raised);
}

}  // namespace weft::aici
