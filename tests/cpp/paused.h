// Stops and continues the test process from a forked child.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace weft::test {

// Stops this process for `for_ms` milliseconds, `after_ms` milliseconds after construction.
class Paused {
 public:
  Paused(int after_ms, int for_ms) : child_(fork()) {
    if (child_ != 0) return;
    usleep(static_cast<useconds_t>(after_ms) * 1000);
    kill(getppid(), SIGSTOP);
    usleep(static_cast<useconds_t>(for_ms) * 1000);
    kill(getppid(), SIGCONT);
    _exit(0);
  }
  Paused(const Paused &) = delete;
  Paused &operator=(const Paused &) = delete;
  // Waits until the pause has ended.
  void join() const { waitpid(child_, nullptr, 0); }

 private:
  const pid_t child_;
};

}  // namespace weft::test
