// The guided state on the CPU driver's streams, with fake matchers. Sanitizers check its threads.
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "fake_matcher.h"
#include "guided/state.h"
#include "support/awake.h"
#include "support/kernel_threads.h"

namespace {

using weft::GuidedState;
using weft::SlotStatus;
using namespace weft::cu;

using weft::test::destroyed_in_callback, weft::test::fake_accept, weft::test::fake_of, weft::test::in_callback;
using weft::test::Fake, weft::test::kEnd, weft::test::kVocab, weft::test::live, weft::test::make;

constexpr int kSlots = 6, kDrafts = 3, kWords = 3, kWidth = kDrafts + 1;

// A guided state with the host's memory, the device's copies, and a fake model that samples from the masks at random.
struct Decoding {
  std::vector<std::int64_t> drafts_host = std::vector<std::int64_t>(kDrafts * (kSlots + 1), -1);
  std::vector<std::int64_t> verified_host = std::vector<std::int64_t>((kSlots + 1) * (kDrafts + 2));
  std::vector<std::int32_t> masks_host = std::vector<std::int32_t>((kSlots + 1) * kWidth * kWords);
  std::vector<std::int32_t> flags_host = std::vector<std::int32_t>((kSlots + 1) * kWidth);
  std::vector<std::int64_t> drafts = drafts_host, verified = verified_host;
  std::vector<std::int32_t> masks = masks_host, flags = flags_host;
  std::vector<std::vector<std::int64_t>> texts = std::vector<std::vector<std::int64_t>>(kSlots);
  GuidedState state;
  CUstream model = nullptr, grammar = nullptr;
  CUevent token_event = nullptr, mask_event = nullptr;
  std::mt19937 random{7};
  std::atomic<int> iterations{0};
  const weft::cu::Driver &driver = weft::cpu_driver();

  explicit Decoding(int workers = 0)
      : state({kSlots, kDrafts, kVocab}, {kEnd},
              {drafts_host.data(), verified_host.data(), masks_host.data(), flags_host.data()}, workers) {
    CHECK_OK(driver.cuStreamCreate(&model, CU_STREAM_NON_BLOCKING));
    CHECK_OK(driver.cuStreamCreate(&grammar, CU_STREAM_NON_BLOCKING));
    CHECK_OK(driver.cuEventCreate(&token_event, CU_EVENT_DISABLE_TIMING));
    CHECK_OK(driver.cuEventCreate(&mask_event, CU_EVENT_DISABLE_TIMING));
  }
  ~Decoding() {
    CHECK_OK(driver.cuStreamSynchronize(model));
    CHECK_OK(driver.cuStreamSynchronize(grammar));
    CHECK_OK(driver.cuEventDestroy(token_event));
    CHECK_OK(driver.cuEventDestroy(mask_event));
    CHECK_OK(driver.cuStreamDestroy(model));
    CHECK_OK(driver.cuStreamDestroy(grammar));
  }

  void host(GuidedState::Operation operation, int draft = 0) {
    struct Call {
      GuidedState::Call inner;
    };
    const GuidedState::Call call = state.task(operation, draft);
    CHECK_OK(driver.cuLaunchHostFunc(
        grammar,
        [](void *data) {
          const std::unique_ptr<Call> mine(static_cast<Call *>(data));
          in_callback = true;
          mine->inner.run(mine->inner.data);
          in_callback = false;
        },
        new Call{call}));
  }
  template <class T>
  void copy(CUstream stream, std::vector<T> &to, const std::vector<T> &from) {
    CHECK_OK(driver.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to.data()), reinterpret_cast<CUdeviceptr>(from.data()),
                                  to.size() * sizeof(T), stream));
  }
  void device(CUhostFn work) { CHECK_OK(weft::cpu::launch_device(model, work, this)); }
  void enter() {
    CHECK_OK(driver.cuEventRecord(token_event, model));
    CHECK_OK(driver.cuStreamWaitEvent(grammar, token_event, 0));
  }
  void leave() {
    copy(grammar, masks, masks_host);
    copy(grammar, flags, flags_host);
    join();
  }
  void join() {
    CHECK_OK(driver.cuEventRecord(mask_event, grammar));
    CHECK_OK(driver.cuStreamWaitEvent(model, mask_event, 0));
  }

  std::int64_t pick(int slot, int position) {
    std::vector<std::int64_t> allowed;
    const std::int32_t *row = &masks[(slot * kWidth + position) * kWords];
    for (int token = 0; token < kVocab; ++token)
      if (flags[slot * kWidth + position] == 0 || (static_cast<std::uint32_t>(row[token / 32]) >> (token % 32) & 1))
        allowed.push_back(token);
    CHECK(!allowed.empty());
    return allowed[random() % allowed.size()];
  }
  void verify() {
    for (int slot = 0; slot < kSlots; ++slot) {
      std::int64_t *row = &verified[slot * (kDrafts + 2)];
      std::int64_t accepted = 0;
      for (int position = 0; position <= kDrafts; ++position) {
        const std::int64_t draft = position < kDrafts ? drafts[position * (kSlots + 1) + slot] : -1;
        // The target accepts three quarters of the drafts that its mask allows.
        const bool legal =
            draft >= 0 &&
            (static_cast<std::uint32_t>(masks[(slot * kWidth + position) * kWords + draft / 32]) >> (draft % 32) & 1);
        row[1 + position] = legal && random() % 4 ? draft : pick(slot, position);
        if (accepted == position && row[1 + position] == draft) ++accepted;
      }
      row[0] = accepted;
      for (int i = 0; i <= accepted; ++i)
        if (texts[slot].empty() || texts[slot].back() != kEnd) texts[slot].push_back(row[1 + i]);
      for (int j = 0; j < kDrafts; ++j) drafts[j * (kSlots + 1) + slot] = -1;
    }
    ++iterations;
  }
  template <int J>
  void draft() {
    for (int slot = 0; slot < kSlots; ++slot)
      drafts[(J - 1) * (kSlots + 1) + slot] =
          random() % 8 ? pick(slot, J - 1) : static_cast<std::int64_t>(random() % kVocab);
  }

  // Runs an iteration: fetch, extend with the previous iteration's drafts, verify, commit, and draft with the grammar.
  // With `ahead`, the last draft is offered to idle threads.
  void step(bool ahead = false) {
    enter();
    host(GuidedState::kFetch);
    copy(grammar, drafts_host, drafts);
    for (int j = 1; j <= kDrafts; ++j) host(GuidedState::kExtend, j);
    leave();
    device([](void *self) { static_cast<Decoding *>(self)->verify(); });
    copy(model, verified_host, verified);
    enter();
    host(GuidedState::kCommit);
    leave();
    device([](void *self) { static_cast<Decoding *>(self)->draft<1>(); });
    extend(1);
    device([](void *self) { static_cast<Decoding *>(self)->draft<2>(); });
    extend(2);
    device([](void *self) { static_cast<Decoding *>(self)->draft<3>(); });
    if (!ahead) return;
    copy(model, drafts_host, drafts);
    enter();
    host(GuidedState::kExtendAhead, kDrafts);
    join();
  }
  // Runs an iteration without drafts that owes its commit. Verification writes its result to the host's memory at once.
  void step_owing(bool ahead = false) {
    enter();
    host(GuidedState::kFetch, 1);
    leave();
    device([](void *self) {
      auto &decoding = *static_cast<Decoding *>(self);
      decoding.verify();
      decoding.verified_host = decoding.verified;
    });
    if (!ahead) return;
    enter();
    host(GuidedState::kCommitAhead);
    join();
  }
  void extend(int j) {
    copy(model, drafts_host, drafts);
    enter();
    host(GuidedState::kExtend, j);
    leave();
  }
};

// Checks that the matcher accepts the tokens of `text` in order.
void check_text(const std::vector<std::int64_t> &text, Fake matcher) {
  for (std::int64_t token : text) {
    if (matcher.ended()) break;
    CHECK(fake_accept(&matcher, static_cast<std::int32_t>(token)) == 1);
  }
}

const std::vector<int> kAll = {3, 0, 5, 1, 4, 2, kSlots};

// Wakes the kernel threads, which then take offers for a while.
void wake_helpers() {
  weft::for_rows(64, 3, 1'000'000, [](std::int64_t, std::int64_t) {});
}

TEST_CASE("texts are in the grammar") {
  for (int workers : {0, 2}) {
    Decoding decoding(workers);
    for (int i = 0; i < 20; ++i) {
      GuidedState::Attach attach;
      if (i == 0)
        for (int slot = 0; slot < kSlots - 1; ++slot) attach.emplace_back(slot, make(fake_of(slot, 8 + 3 * slot)));
      decoding.state.push(kAll, std::move(attach));
      if (workers) wake_helpers();
      decoding.step(workers != 0);
      if (i % 2) CHECK_OK(decoding.driver.cuStreamSynchronize(decoding.model));
    }
    CHECK_OK(decoding.driver.cuStreamSynchronize(decoding.model));
    CHECK(decoding.state.num_failed() == 0);
    for (int slot = 0; slot < kSlots - 1; ++slot) {
      check_text(decoding.texts[slot], fake_of(slot, 8 + 3 * slot));
      CHECK(decoding.state.is_terminated(slot));
      CHECK(decoding.state.committed(slot) == 9 + 3 * slot);
    }
    CHECK(!decoding.state.is_guided(kSlots - 1));
  }
  CHECK(live == 0);
}

// The host launches iteration i before it reads i - 1. Either the host or iteration i's fetch commits i - 1, and the
// other finds it done.
TEST_CASE("an owed commit is done once by the host or by the next fetch") {
  constexpr int kIterations = 60;
  for (const auto &[workers, ahead] : {std::pair{0, false}, {2, false}, {2, true}}) {
    Decoding decoding(workers);
    CUevent done[2];
    for (CUevent &event : done) CHECK_OK(decoding.driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    std::vector<std::uint64_t> epochs;
    const auto read = [&](int i) {
      CHECK_OK(decoding.driver.cuEventSynchronize(done[i % 2]));
      if (i % 3 == 2) std::this_thread::sleep_for(std::chrono::microseconds(200));
      decoding.state.commit_owed(epochs[static_cast<std::size_t>(i)]);
      for (int slot = 0; slot < kSlots; ++slot) {
        const std::int64_t committed = decoding.state.committed(slot);
        CHECK(committed >= i + 1);
        CHECK(committed <= i + 1 + ahead);  // the next iteration's commit may have begun
      }
    };
    for (int i = 0; i < kIterations; ++i) {
      GuidedState::Attach attach;
      if (i == 0)
        for (int slot = 0; slot < kSlots; ++slot) attach.emplace_back(slot, make(fake_of(slot, 1000)));
      epochs.push_back(decoding.state.push(kAll, std::move(attach)));
      if (ahead) wake_helpers();
      decoding.step_owing(ahead);
      CHECK_OK(decoding.driver.cuEventRecord(done[i % 2], decoding.model));
      if (i > 0) read(i - 1);
    }
    read(kIterations - 1);
    CHECK(decoding.state.counters(GuidedState::kCommit).calls == kIterations);
    CHECK(decoding.state.num_failed() == 0);
    for (int slot = 0; slot < kSlots; ++slot) check_text(decoding.texts[slot], fake_of(slot, 1000));
    for (CUevent event : done) CHECK_OK(decoding.driver.cuEventDestroy(event));
  }
  CHECK(live == 0);
}

TEST_CASE("the host reads while callbacks run") {
  Decoding decoding;
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done) {
      for (int slot = 0; slot < kSlots; ++slot) {
        decoding.state.status(slot);
        CHECK(decoding.state.committed(slot) >= 0);
        CHECK(decoding.state.extended(slot) <= kDrafts);
        decoding.state.is_terminated(slot);
      }
      decoding.state.counters(GuidedState::kCommit);
      CHECK(decoding.state.num_failed() <= kSlots);
    }
  });
  for (int i = 0; i < 30; ++i) {
    GuidedState::Attach attach;
    if (i % 5 == 0)
      for (int slot = 0; slot < kSlots; ++slot)
        attach.emplace_back(slot, make(fake_of(i + slot, 6, slot == 2 ? 3 : -1)));
    decoding.state.push(kAll, std::move(attach));
    decoding.step();
  }
  CHECK_OK(decoding.driver.cuStreamSynchronize(decoding.model));
  done = true;
  reader.join();
  CHECK(decoding.state.status(2).first == SlotStatus::kMatcher);
  CHECK(decoding.state.status(2).second.find("planted") != std::string::npos);
  CHECK(decoding.state.num_failed() == 1);
}

TEST_CASE("matchers are not destroyed in callbacks") {
  destroyed_in_callback = false;
  {
    Decoding decoding;
    for (int i = 0; i < 10; ++i) {
      GuidedState::Attach attach;
      for (int slot = 0; slot < kSlots; ++slot) attach.emplace_back(slot, i % 3 == 2 ? nullptr : make(fake_of(slot)));
      decoding.state.push(kAll, std::move(attach));
      decoding.step();
    }
    CHECK_OK(decoding.driver.cuStreamSynchronize(decoding.model));
    decoding.state.push({}, {});
    CHECK(live == kSlots);
  }
  CHECK(live == 0);
  CHECK(!destroyed_in_callback);
}

TEST_CASE("an iteration without a snapshot fails its slots") {
  Decoding decoding;
  decoding.state.push({0, 1, kSlots}, {{0, make(fake_of(0))}, {1, make(fake_of(0))}});
  decoding.step();
  decoding.step();
  CHECK_OK(decoding.driver.cuStreamSynchronize(decoding.model));
  CHECK(decoding.state.status(0).first == SlotStatus::kEpoch);
  CHECK(decoding.state.status(1).first == SlotStatus::kEpoch);
  CHECK(decoding.state.status(2).first == SlotStatus::kOk);
  CHECK(decoding.state.num_failed() == 2);
}

// Accepts the same tokens as the fake matcher, but returns 2 for success: `edit` must then be called.
int splicing_accept(void *self, std::int32_t token) { return 2 * fake_accept(self, token); }
int drops_two(void *, int *drop, std::int32_t *, int) { return *drop = 2, 0; }
int appends_no_token(void *, int *drop, std::int32_t *append, int) { return *drop = 1, append[0] = kVocab, 1; }

TEST_CASE("an edit that can not be fails its slot") {
  for (auto *edit : {drops_two, appends_no_token}) {
    weft_matcher_ops ops = weft::test::kOps;
    ops.accept = splicing_accept;
    ops.edit = edit;
    Decoding decoding;
    ++live;
    const auto matcher = std::make_shared<weft::MatcherHandle>(weft_matcher{&ops, new Fake(fake_of(0))});
    decoding.state.push({0, 1, kSlots}, {{0, matcher}, {1, make(fake_of(0))}});
    decoding.step();
    CHECK_OK(decoding.driver.cuStreamSynchronize(decoding.model));
    CHECK(decoding.state.status(0).first == SlotStatus::kMatcher);
    CHECK(decoding.state.status(0).second.find("it may take back 1") != std::string::npos);
    CHECK(decoding.state.status(1).first == SlotStatus::kOk);
  }
}

TEST_CASE("workers take part in a long phase") {
  Decoding decoding(3);
  GuidedState::Attach attach;
  for (int slot = 0; slot < kSlots; ++slot) {
    Fake slow = fake_of(slot);
    slow.delay = std::chrono::microseconds(2000);
    attach.emplace_back(slot, make(slow));
  }
  for (int i = 0; i < 5; ++i) {
    decoding.state.push(kAll, std::move(attach));
    attach.clear();
    decoding.step();
  }
  CHECK_OK(decoding.driver.cuStreamSynchronize(decoding.model));
  CHECK(decoding.state.num_failed() == 0);
  for (int slot = 0; slot < kSlots; ++slot) check_text(decoding.texts[slot], fake_of(slot));
}

// Three slots without a device: the operations are called in order.
struct Alone {
  std::vector<std::int64_t> drafts = std::vector<std::int64_t>(4, -1), verified = std::vector<std::int64_t>(4 * 3);
  std::vector<std::int32_t> masks = std::vector<std::int32_t>(4 * 2 * kWords), flags = std::vector<std::int32_t>(4 * 2);
  GuidedState state{{3, 1, kVocab}, {kEnd}, {drafts.data(), verified.data(), masks.data(), flags.data()}, 2};

  // Commits a token that the fake matcher allows, and leaves a draft that it allows next.
  void commit(const std::vector<Fake> &matchers) {
    for (int slot = 0; slot < 3; ++slot) {
      Fake matcher = matchers[static_cast<std::size_t>(slot)];
      const auto take = [&] {
        std::int64_t token = 1;
        while (!matcher.allows(static_cast<std::int32_t>(token))) ++token;
        matcher.taken.push_back(static_cast<std::int32_t>(token));
        return token;
      };
      verified[static_cast<std::size_t>(slot) * 3] = 0;
      verified[static_cast<std::size_t>(slot) * 3 + 1] = take();
      drafts[static_cast<std::size_t>(slot)] = take();
    }
  }
};

TEST_CASE("a failure ahead of time takes effect at the fetch") {
  for (int round = 0; round < 50; ++round) {
    Alone alone;
    const std::vector<Fake> matchers = {fake_of(0), fake_of(1, 12, 2),
                                        fake_of(2)};  // the second fails after two tokens
    GuidedState::Attach attach;
    for (int slot = 0; slot < 3; ++slot) attach.emplace_back(slot, make(matchers[static_cast<std::size_t>(slot)]));
    alone.state.push({0, 1, 2}, std::move(attach));
    alone.state.fetch();
    alone.commit(matchers);
    alone.state.commit();
    wake_helpers();
    alone.state.extend_ahead(1);
    std::this_thread::sleep_for(std::chrono::microseconds(round % 2 ? 100 : 0));
    CHECK(alone.state.num_failed() == 0);
    alone.state.push({0, 1, 2}, {});
    alone.state.fetch();
    CHECK((alone.state.num_failed() == 0 || alone.state.status(1).first == SlotStatus::kMatcher));
    alone.state.extend_through(1);
    CHECK(alone.state.status(1).first == SlotStatus::kMatcher);
    CHECK(alone.state.num_failed() == 1);
    CHECK(alone.state.extended(0) == 1);
    CHECK(alone.state.extended(2) == 1);
  }
  CHECK(live == 0);
}

TEST_CASE("the host ends what is done ahead") {
  for (int round = 0; round < 50; ++round) {
    Alone alone;
    const std::vector<Fake> matchers = {fake_of(0), fake_of(1), fake_of(2)};
    GuidedState::Attach attach;
    for (int slot = 0; slot < 3; ++slot) attach.emplace_back(slot, make(matchers[static_cast<std::size_t>(slot)]));
    alone.state.push({0, 1, 2}, std::move(attach));
    alone.state.fetch();
    alone.commit(matchers);
    alone.state.commit();
    wake_helpers();
    alone.state.extend_ahead(1);
    if (round % 4 == 0) {
      for (int slot = 0; slot < 3; ++slot) alone.state.release(slot);
      for (int slot = 0; slot < 3; ++slot) CHECK(alone.state.extended(slot) == 0);
    } else if (round % 4 == 1) {
      alone.state.vacate({0, 1, 2});
      CHECK(live == 0);
    } else if (round % 4 == 2) {
      alone.state.record(1 << 12);
    }
  }
  CHECK(live == 0);
}

std::atomic<int> fills_elsewhere{0};
std::atomic<std::thread::id> caller;
int waiting_fill(void *self, std::int32_t *row, int words) {
  weft::note_that_may_wait();
  if (std::this_thread::get_id() != caller.load()) ++fills_elsewhere;
  return weft::test::fake_fill(self, row, words);
}

// The host waits for an offer to end, perhaps with the lock that such a matcher waits for.
TEST_CASE("a matcher that may wait is not offered") {
  weft_matcher_ops ops = weft::test::kOps;
  ops.fill = waiting_fill;
  caller = std::this_thread::get_id();
  Alone alone;
  ++live;
  const auto matcher = std::make_shared<weft::MatcherHandle>(weft_matcher{&ops, new Fake(fake_of(0))});
  const std::vector<Fake> matchers = {fake_of(0), fake_of(1), fake_of(2)};
  alone.state.push({0, 1}, {{0, matcher}, {1, make(matchers[1])}});
  alone.state.fetch();
  alone.commit(matchers);
  wake_helpers();
  alone.state.extend_ahead(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(fills_elsewhere == 0);
  CHECK(alone.state.counters(GuidedState::kExtend).calls == 0);
}

}  // namespace
