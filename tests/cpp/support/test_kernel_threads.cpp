// The threads of the CPU kernels: every row is processed exactly once, also with several callers at a time and after
// helpers have slept.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "check.h"
#include "support/kernel_threads.h"
#include "support/long_phase.h"

namespace {

using namespace weft;

constexpr std::int64_t kCostly = 1'000'000;  // enough to wake a helper

void each_row_is_done_once(std::int64_t rows, int threads, std::int64_t cost) {
  std::vector<int> done(static_cast<std::size_t>(rows), 0);  // no atomics: only one worker may process a row
  for_rows(rows, threads, cost, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) ++done[static_cast<std::size_t>(i)];
  });
  for (int count : done) CHECK(count == 1);
}

TEST_CASE("rows are done once") {
  for (int round = 0; round < 200; ++round)
    for (std::int64_t rows : {0, 1, 2, 3, 7, 64, 1000})
      for (int threads : {1, 2, 4}) each_row_is_done_once(rows, threads, round % 2 ? kCostly : 1);
}

// A worker takes its own part in order, and then steals the parts of workers that never start.
TEST_CASE("rows of workers that do not start are done") {
  for (int worker = 0; worker < 3; ++worker) {
    weft::StealingQueue queue(100, 4, 3);
    weft::Share share(queue, worker);
    std::vector<int> done(100);
    std::int64_t begin, end, expected = 100 * worker / 3;
    const std::int64_t own_end = 100 * (worker + 1) / 3;
    for (bool is_own = true; share.next(begin, end); is_own = is_own && end < own_end) {
      CHECK(begin < end);
      CHECK(end <= 100);
      if (is_own) CHECK(begin == expected);
      expected = end;
      for (std::int64_t row = begin; row < end; ++row) ++done[static_cast<std::size_t>(row)];
    }
    CHECK(std::all_of(done.begin(), done.end(), [](int times) { return times == 1; }));
    CHECK(share.count() > 9);
    CHECK(share.count() <= 40);
  }
}

TEST_CASE("what workers wrote is seen by the caller") {
  std::vector<std::int64_t> values(4096, 0);
  for (std::int64_t round = 1; round < 300; ++round) {
    for_rows(4096, 3, kCostly, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) values[static_cast<std::size_t>(i)] += i;
    });
    for (std::int64_t i = 0; i < 4096; ++i) CHECK(values[static_cast<std::size_t>(i)] == i * round);
  }
}

TEST_CASE("helpers that slept come again") {
  for (int round = 0; round < 20; ++round) {
    each_row_is_done_once(64, 3, kCostly);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than helpers spin
  }
}

TEST_CASE("several callers at a time each get their rows") {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([] {
      for (int round = 0; round < 200; ++round) each_row_is_done_once(100, 3, kCostly);
    });
  }
  for (std::thread &caller : callers) caller.join();
}

TEST_CASE("a call inside a call is done by its caller") {
  std::atomic<int> inner{0};
  for_rows(8, 3, kCostly, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      for_rows(10, 3, kCostly, [&](std::int64_t from, std::int64_t to) { inner += static_cast<int>(to - from); });
  });
  CHECK(inner.load() == 80);
}

TEST_CASE("items of a phase are done once long or short") {
  for (int helpers : {0, 2}) {
    const LongPhase phase(helpers);
    for (int microseconds : {0, 30}) {
      std::vector<int> done(50, 0);
      phase.for_each(50, [&](int i) {
        std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
        ++done[static_cast<std::size_t>(i)];
      });
      for (int count : done) CHECK(count == 1);
    }
  }
}

}  // namespace
