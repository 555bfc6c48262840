// A guide's time limit for one token: work and waiting are measured separately, and every call of a slot's matcher
// counts.
#include <sched.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "fake_matcher.h"
#include "guided/clock.h"
#include "guided/state.h"
#include "paused.h"
#include "support/awake.h"
#include "support/thread_time.h"

namespace {

using weft::GuideClock;
using weft::GuidedState;
using weft::SlotStatus;
using namespace weft::test;

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr int kSlots = 2, kDrafts = 3, kWords = 3;
// Far above the time of the fake matchers under a sanitizer.
constexpr double kLimit_s = 0.05;

void work_for(std::int64_t ns) {
  const std::int64_t end = weft::thread_cpu_ns() + ns;
  while (weft::thread_cpu_ns() < end) continue;
}

// Waits as a guide in Python may.
void wait_for(int ms) {
  weft::note_that_may_wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

TEST_CASE("work and waiting are told apart") {
  GuideClock clock(0.2);
  clock.begin();
  work_for(20 * kMillisecond);
  clock.lap(GuideClock::kTaking);
  wait_for(200);
  clock.lap(GuideClock::kMasks);
  CHECK(clock.work_ns() >= 19 * kMillisecond);
  CHECK(clock.work_ns() < 150 * kMillisecond);  // far below the sum, and far above a sanitizer's own work
  CHECK(clock.waited_ns() >= 28 * kMillisecond);
  CHECK(!clock.is_over());
  clock.restart();
  CHECK(clock.work_ns() + clock.waited_ns() == 0);
}

TEST_CASE("many short laps add up") {
  GuideClock clock(0.01);
  int laps = 0;
  for (; laps < 10000 && !clock.is_over(); ++laps) {
    clock.begin();
    work_for(20'000);
    clock.lap(GuideClock::kTrying);
  }
  CHECK(laps > 50);
  CHECK(laps < 600);
  CHECK(clock.problem().find("trying drafts 1") != std::string::npos);
}

TEST_CASE("others on the processor are no work") {
  cpu_set_t before, one;
  CPU_ZERO(&one);
  CHECK_OK(static_cast<weft::cu::CUresult>(sched_getaffinity(0, sizeof before, &before)));
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  if (sched_setaffinity(0, sizeof one, &one) != 0) return;
  std::atomic<bool> done{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 4; ++i)
    others.emplace_back([&] {
      while (!done) continue;
    });
  GuideClock clock(0.2);
  clock.begin();
  for (int i = 0; i < 40; ++i) {
    work_for(kMillisecond);
    clock.lap(GuideClock::kTaking);
  }
  done = true;
  for (std::thread &other : others) other.join();
  sched_setaffinity(0, sizeof before, &before);
  CHECK(clock.work_ns() >= 35 * kMillisecond);
  CHECK(clock.work_ns() < 80 * kMillisecond);
  CHECK(clock.waited_ns() == 0);
}

TEST_CASE("what never waits is kept from a processor") {
  GuideClock clock(0.01, 40 * kMillisecond);
  clock.begin();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  clock.lap(GuideClock::kMasks);
  CHECK(clock.waited_ns() == 0);
  CHECK(!clock.is_over());
}

TEST_CASE("a pause of the process is no waiting") {
  GuideClock waits(0.01, 500 * kMillisecond), works(0.01, 500 * kMillisecond);
  waits.begin();
  works.begin();
  const Paused paused(50, 1000);
  wait_for(100);
  waits.lap(GuideClock::kTaking);
  work_for(kMillisecond);
  works.lap(GuideClock::kTaking);
  paused.join();
  CHECK(waits.waited_ns() < 450 * kMillisecond);
  CHECK(works.work_ns() < 450 * kMillisecond);
  CHECK(!waits.is_over());
}

TEST_CASE("many short waits add up") {
  GuideClock clock(0.1, 100 * kMillisecond);
  int laps = 0;
  for (; laps < 5000 && !clock.is_over(); ++laps) {
    clock.begin();
    wait_for(2);
    clock.lap(GuideClock::kTaking);
  }
  CHECK(laps > 20);
  CHECK(laps < 5000);
}

TEST_CASE("what others work for a thread is its work") {
  GuideClock clock(0.01);
  clock.begin();
  std::thread guest([] { work_for(15 * kMillisecond); });
  guest.join();
  weft::worked_for_thread_ns += 15 * kMillisecond;
  clock.lap(GuideClock::kTaking);
  CHECK(clock.work_ns() >= 14 * kMillisecond);
  CHECK(clock.is_over());
}

TEST_CASE("waiting has a limit of its own") {
  GuideClock patient(0.01, 60'000 * kMillisecond), clock(0.01, 40 * kMillisecond);
  patient.begin();
  clock.begin();
  wait_for(400);
  patient.lap(GuideClock::kMasks);
  clock.lap(GuideClock::kMasks);
  CHECK(!patient.is_over());
  CHECK(clock.is_over());
  CHECK(clock.problem().find("of waiting within one token, over the limit of 40 ms") != std::string::npos);
}

TEST_CASE("without a limit nothing is measured") {
  GuideClock clock(0);
  clock.begin();
  work_for(kMillisecond);
  clock.lap(GuideClock::kMasks);
  CHECK(clock.work_ns() == 0);
  CHECK(!clock.is_over());
}

// A state on plain memory, without streams. The matcher in slot 0 may be slow in one operation (`slow_at`).
struct Guided {
  std::vector<std::int64_t> drafts = std::vector<std::int64_t>(kDrafts * (kSlots + 1), -1);
  std::vector<std::int64_t> verified = std::vector<std::int64_t>((kSlots + 1) * (kDrafts + 2));
  std::vector<std::int32_t> masks = std::vector<std::int32_t>((kSlots + 1) * (kDrafts + 1) * kWords);
  std::vector<std::int32_t> flags = std::vector<std::int32_t>((kSlots + 1) * (kDrafts + 1));
  GuidedState state{
      {kSlots, kDrafts, kVocab}, {kEnd}, {drafts.data(), verified.data(), masks.data(), flags.data()}, 0, kLimit_s};
  Fake next[kSlots] = {fake_of(0, 100), fake_of(1, 100)};

  void attach(Fake first) {
    state.push({0, 1}, {{0, make(std::move(first))}, {1, make(fake_of(1, 100))}});
    state.fetch();
  }
  std::int64_t token_of(int slot) const {
    for (std::int32_t token = 1; token < kVocab; ++token)
      if (next[slot].allows(token)) return token;
    return -1;
  }
  // Runs an iteration in which each slot's grammar accepts all `count` drafts, and verification keeps `kept` of them.
  void iterate(int count, int kept) {
    state.push({0, 1}, {});
    state.fetch();
    for (int slot = 0; slot < kSlots; ++slot) {
      Fake at = next[slot];
      for (int i = 0; i <= count; ++i) {
        const std::int64_t token = token_of(slot);
        fake_accept(&next[slot], static_cast<std::int32_t>(token));
        if (i < count) drafts[i * (kSlots + 1) + slot] = token;
        verified[slot * (kDrafts + 2) + 1 + i] = token;
        if (i == kept) at = next[slot];
      }
      verified[slot * (kDrafts + 2)] = kept;
      next[slot] = at;
    }
    state.extend_through(count);
    state.commit();
  }
  void check_failed(const std::string &part) {
    const auto [status, message] = state.status(0);
    CHECK(status == SlotStatus::kTimeLimit);
    CAPTURE(message);
    CHECK(message.find(part + " 6") != std::string::npos);
    CHECK(message.find("over the limit of 50 ms") != std::string::npos);
    CHECK(state.status(1).first == SlotStatus::kOk);
    CHECK(state.num_failed() == 1);
    CHECK(masks[0] == 1);  // allows the end token only
  }
};

Fake slow_at(Fake::Call call, std::int64_t ns = 63 * kMillisecond) {
  Fake matcher = fake_of(0, 100);
  matcher.slow = call;
  matcher.work_ns = ns;
  return matcher;
}

TEST_CASE("a slow mask fails its slot") {
  Guided guided;
  guided.attach(slow_at(Fake::kFill));
  guided.check_failed("masks");
}

TEST_CASE("a slow accept fails its slot") {
  Guided guided;
  guided.attach(slow_at(Fake::kAccept));
  CHECK(guided.state.status(0).first == SlotStatus::kOk);
  guided.iterate(0, 0);
  guided.check_failed("taking tokens");
  CHECK(guided.state.committed(1) == 1);
}

TEST_CASE("a slow rollback fails its slot") {
  Guided guided;
  guided.attach(slow_at(Fake::kRollback));
  guided.iterate(2, 2);
  CHECK(guided.state.status(0).first == SlotStatus::kOk);
  guided.iterate(2, 0);
  guided.check_failed("taking tokens back");
}

TEST_CASE("a slow release fails its slot") {
  Guided guided;
  guided.attach(slow_at(Fake::kRollback));
  guided.drafts[0] = guided.token_of(0);
  guided.state.extend(1);
  guided.state.release(0);
  guided.check_failed("taking tokens back");
}

TEST_CASE("a slow trial of drafts fails its slot") {
  Guided guided;
  guided.attach(slow_at(Fake::kValidate));
  const auto token = static_cast<std::int32_t>(guided.token_of(0));
  guided.state.validate(0, &token, 1);
  guided.check_failed("trying drafts");
  CHECK(guided.state.validate(0, &token, 1) == 0);
}

TEST_CASE("slow forced text fails its slot") {
  Guided guided;
  guided.attach(slow_at(Fake::kForced));
  std::int32_t tokens[4];
  guided.state.forced(0, tokens, 4);
  guided.check_failed("forced text");
}

TEST_CASE("what is split over a token adds up") {
  Guided guided;
  guided.attach(slow_at(Fake::kAccept, 16 * kMillisecond));
  guided.iterate(0, 0);
  guided.iterate(3, 3);  // 64 ms
  guided.check_failed("taking tokens");
}

TEST_CASE("a share of the limit with each token is not owed") {
  Guided guided;
  guided.attach(slow_at(Fake::kAccept, 4 * kMillisecond));  // its share is 6
  for (int i = 0; i < 15; ++i) guided.iterate(1, i % 2);
  CHECK(guided.state.status(0).first == SlotStatus::kOk);
}

TEST_CASE("more than its share with each token is owed") {
  Guided guided;
  guided.attach(slow_at(Fake::kAccept, 20 * kMillisecond));
  int tokens = 0;
  for (; tokens < 30 && guided.state.status(0).first == SlotStatus::kOk; ++tokens) guided.iterate(0, 0);
  CHECK(tokens >= 3);
  CHECK(tokens <= 5);
  const auto [status, message] = guided.state.status(0);
  CHECK(status == SlotStatus::kTimeLimit);
  CHECK(message.find("more than 6 ms each, over the limit of 50 ms together") != std::string::npos);
  CHECK(guided.state.status(1).first == SlotStatus::kOk);
}

TEST_CASE("a guide that comes owes nothing") {
  GuideClock clock(0.05);
  clock.begin();
  work_for(40 * kMillisecond);
  clock.lap(GuideClock::kTaking);
  clock.restart(2);
  CHECK(clock.owed_ns() > 20 * kMillisecond);
  CHECK(clock.owed_ns() < 40 * kMillisecond);
  clock.reset();
  CHECK(clock.owed_ns() == 0);
}

TEST_CASE("a matcher that comes begins anew") {
  Guided guided;
  guided.attach(slow_at(Fake::kAccept, 40 * kMillisecond));
  guided.iterate(0, 0);
  guided.attach(slow_at(Fake::kFill, 40 * kMillisecond));
  CHECK(guided.state.status(0).first == SlotStatus::kOk);
}

}  // namespace
