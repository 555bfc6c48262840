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

// Wakes helpers, which then look for offers for a while.
void wake_helpers() {
  for_rows(64, 3, kCostly, [](std::int64_t, std::int64_t) {});
}

TEST_CASE("an offer's items are done once by helpers or their owner") {
  std::atomic<int> by_helpers{0};
  const std::thread::id owner = std::this_thread::get_id();
  Offer offer;
  for (int round = 0; round < 300; ++round) {
    wake_helpers();
    std::vector<int> done(20, 0);
    offer.open(20, 2, [&](int item) {
      if (std::this_thread::get_id() != owner) ++by_helpers;
      ++done[static_cast<std::size_t>(item)];
    });
    CHECK(offer.is_open());
    if (round % 3 == 1) std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (round % 3 == 2) each_row_is_done_once(100, 3, kCostly);
    offer.close(true);
    CHECK(!offer.is_open());
    for (int count : done) CHECK(count == 1);
    offer.close(true);  // does nothing
  }
  CHECK(by_helpers > 0);
}

TEST_CASE("an offer that is closed early leaves items and no thread") {
  for (int round = 0; round < 300; ++round) {
    wake_helpers();
    std::vector<int> done(20, 0);
    {
      Offer offer;
      offer.open(20, 2, [&](int item) { ++done[static_cast<std::size_t>(item)]; });
      if (round % 2) std::this_thread::yield();
    }
    for (int count : done) CHECK(count <= 1);
  }
}

TEST_CASE("a second offer is done by its owner") {
  wake_helpers();
  std::vector<int> first(20, 0), second(20, 0);
  Offer shown, hidden;
  shown.open(20, 2, [&](int item) { ++first[static_cast<std::size_t>(item)]; });
  hidden.open(20, 2, [&](int item) { ++second[static_cast<std::size_t>(item)]; });
  hidden.close(true);
  shown.close(true);
  for (int count : first) CHECK(count == 1);
  for (int count : second) CHECK(count == 1);
}

TEST_CASE("owners on several threads offer at the same time") {
  std::vector<std::thread> owners;
  for (int owner = 0; owner < 3; ++owner) {
    owners.emplace_back([] {
      Offer offer;
      for (int round = 0; round < 200; ++round) {
        wake_helpers();
        std::vector<int> done(8, 0);
        offer.open(8, 2, [&](int item) { ++done[static_cast<std::size_t>(item)]; });
        offer.close(true);
        for (int count : done) CHECK(count == 1);
      }
    });
  }
  for (std::thread &owner : owners) owner.join();
}

}  // namespace
