// The clock that stops while the process is stopped.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "check.h"
#include "paused.h"
#include "support/awake.h"
#include "support/timer.h"

namespace {

using weft::AwakeWatch;
using namespace weft::test;

constexpr std::int64_t kMillisecond = 1'000'000;

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

TEST_CASE("it goes on while the process runs") {
  const AwakeWatch watch;
  const std::int64_t began = weft::now_ns();
  sleep_ms(300);
  CHECK(watch.passed_ns() > 2 * weft::kAwakeTickNs);
  CHECK(watch.passed_ns() <= weft::now_ns() - began + weft::kAwakeTickNs);
}

TEST_CASE("a pause stops it") {
  const AwakeWatch watch;
  const std::int64_t began = weft::now_ns();
  const Paused paused(50, 600);
  sleep_ms(150);
  paused.join();
  CHECK(weft::now_ns() - began > 500 * kMillisecond);
  CHECK(watch.passed_ns() < 400 * kMillisecond);
}

TEST_CASE("it stands where nobody listens") {
  { const AwakeWatch watch; }
  sleep_ms(1500);
  const std::int64_t before = weft::awake_ns();
  sleep_ms(100);
  CHECK(weft::awake_ns() == before);
  weft::note_that_may_wait();
  sleep_ms(200);
  CHECK(weft::awake_ns() > before);
}

#if !defined(__SANITIZE_THREAD__)  // it does not support threads in a forked child

TEST_CASE("a fork has a clock of its own") {
  const AwakeWatch watch;
  const pid_t child = fork();
  if (child == 0) {
    weft::end_process_after(100 * kMillisecond);
    for (;;) pause();
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGALRM);
}

TEST_CASE("a process that need not end goes on") {
  const pid_t child = fork();
  if (child == 0) {
    weft::end_process_after(50 * kMillisecond);
    weft::end_process_after(0);
    sleep_ms(300);
    _exit(7);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
}

#endif

}  // namespace
