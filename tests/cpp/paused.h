// A pause of this process, made by a child of it.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace weft::test {

// `after_ms` from here on this process is stopped for `for_ms`.
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
  // Returns when it is over.
  void join() const { waitpid(child_, nullptr, 0); }

 private:
  const pid_t child_;
};

}  // namespace weft::test
