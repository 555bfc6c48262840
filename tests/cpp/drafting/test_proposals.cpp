// Proposals on the CPU driver's streams: every draft is legal and every text is in the grammar, while the host opens
// texts, attaches matchers and switches guiding. Sanitizers check the threads.
#include <atomic>
#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "drafting/lookahead.h"
#include "drafting/proposals.h"
#include "fake_matcher.h"

namespace {

using weft::DraftSource;
using weft::GivenSource;
using weft::GuidedState;
using weft::LookaheadSource;
using weft::NgramSource;
using weft::Proposals;
using namespace weft::cu;
using weft::test::Fake, weft::test::fake_accept, weft::test::fake_of, weft::test::kEnd, weft::test::kVocab;
using weft::test::live, weft::test::make;

constexpr int kSlots = 5, kDrafts = 4, kWords = 3, kWidth = kDrafts + 1, kIterations = 60;
constexpr weft::LookaheadSettings kAhead = {3, 3, 4};

// A fake model that decodes with proposals. All slots but the last are guided. Verification samples tokens that the
// masks allow, and accepts three quarters of the legal drafts.
struct Decoding {
  std::vector<std::int64_t> proposed_host = std::vector<std::int64_t>(kDrafts * (kSlots + 1), -1);
  std::vector<std::int64_t> drafts = proposed_host, drafts_host = proposed_host;
  std::vector<std::int64_t> verified_host = std::vector<std::int64_t>((kSlots + 1) * (kDrafts + 2));
  std::vector<std::int64_t> verified = verified_host;
  std::vector<std::int32_t> masks_host = std::vector<std::int32_t>((kSlots + 1) * kWidth * kWords);
  std::vector<std::int32_t> flags_host = std::vector<std::int32_t>((kSlots + 1) * kWidth);
  std::vector<std::int32_t> masks = masks_host, flags = flags_host;
  std::vector<std::int64_t> window_host = std::vector<std::int64_t>((kSlots + 1) * (kAhead.window + 1), -1);
  std::vector<std::int64_t> window = window_host;
  std::vector<std::int64_t> texts[kSlots];  // on the device, since the last end token
  GuidedState state;
  GivenSource *given;      // the sources are owned by `proposals`
  LookaheadSource *ahead;  // ...
  NgramSource *ngram;
  Proposals proposals;
  CUstream model = nullptr, grammar = nullptr;
  CUevent token_event = nullptr, mask_event = nullptr;
  std::mt19937 random{11};
  int accepted = 0, illegal = 0;
  const Driver &driver = weft::cpu_driver();

  explicit Decoding(int workers)
      : state({kSlots, kDrafts, kVocab}, {kEnd},
              {drafts_host.data(), verified_host.data(), masks_host.data(), flags_host.data()}, workers),
        proposals(state, verified_host.data(), proposed_host.data(), make_sources()) {
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

  std::vector<std::unique_ptr<DraftSource>> make_sources() {
    std::vector<std::unique_ptr<DraftSource>> sources;
    auto first = std::make_unique<GivenSource>(state);
    given = first.get();
    sources.push_back(std::move(first));
    sources.push_back(std::make_unique<weft::ForcedSource>(state));
    auto looking = std::make_unique<LookaheadSource>(state, kAhead, window_host.data());
    ahead = looking.get();
    sources.push_back(std::move(looking));
    auto made = std::make_unique<NgramSource>(state, weft::NgramSettings{});
    ngram = made.get();
    sources.push_back(std::move(made));
    return sources;
  }

  void host(GuidedState::Call call) { CHECK_OK(driver.cuLaunchHostFunc(grammar, call.run, call.data)); }
  template <class T>
  void copy(CUstream stream, std::vector<T> &to, const std::vector<T> &from) {
    CHECK_OK(driver.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to.data()), reinterpret_cast<CUdeviceptr>(from.data()),
                                  to.size() * sizeof(T), stream));
  }
  void enter() {
    CHECK_OK(driver.cuEventRecord(token_event, model));
    CHECK_OK(driver.cuStreamWaitEvent(grammar, token_event, 0));
  }
  void leave() {
    copy(grammar, masks, masks_host);
    copy(grammar, flags, flags_host);
    CHECK_OK(driver.cuEventRecord(mask_event, grammar));
    CHECK_OK(driver.cuStreamWaitEvent(model, mask_event, 0));
  }

  bool is_allowed(int slot, int position, std::int64_t token) const {
    const std::size_t row = static_cast<std::size_t>(slot * kWidth + position);
    return flags[row] == 0 || (static_cast<std::uint32_t>(masks[row * kWords + token / 32]) >> (token % 32) & 1);
  }
  std::int64_t pick(int slot, int position) {
    std::vector<std::int64_t> allowed;
    for (int token = 0; token < kVocab; ++token)
      if (is_allowed(slot, position, token)) allowed.push_back(token);
    CHECK(!allowed.empty());
    return random() % 2 ? allowed.front() : allowed[random() % allowed.size()];
  }
  void verify() {
    for (int slot = 0; slot < kSlots; ++slot) {
      std::int64_t *row = &verified[slot * (kDrafts + 2)];
      bool agrees = true;
      row[0] = 0;
      for (int position = 0; position <= kDrafts; ++position) {
        const std::int64_t draft = position < kDrafts ? drafts[position * (kSlots + 1) + slot] : -1;
        const bool legal = draft >= 0 && is_allowed(slot, position, draft);
        if (agrees && draft >= 0 && !legal) ++illegal;
        row[1 + position] = legal && random() % 4 ? draft : pick(slot, position);
        agrees = agrees && row[1 + position] == draft;
        if (agrees) ++row[0], ++accepted;
      }
      // The predicted tokens of the lookahead window, and the position of the last token committed before this
      // iteration. The position holds only for a text opened with the same number of tokens as `texts[slot]`.
      std::int64_t *beside = &window[slot * (kAhead.window + 1)];
      for (int i = 0; i < kAhead.window; ++i) beside[i] = static_cast<std::int64_t>(random() % kVocab);
      beside[kAhead.window] = static_cast<std::int64_t>(texts[slot].size()) - 1;
      for (int i = 0; i <= row[0]; ++i) texts[slot].push_back(row[1 + i]);
    }
  }

  void step(int num_drafts) {
    copy(model, drafts_host, drafts);
    enter();
    host(state.task(GuidedState::kFetch));
    host(state.task(GuidedState::kExtendThrough, kDrafts));
    leave();
    CHECK_OK(weft::cpu::launch_device(model, [](void *self) { static_cast<Decoding *>(self)->verify(); }, this));
    copy(model, verified_host, verified);
    enter();
    host(state.task(GuidedState::kCommit));
    copy(grammar, window_host, window);
    host(proposals.task(num_drafts));
    copy(grammar, drafts, proposed_host);
    leave();
  }
};

// Returns the text of the lowest tokens that the slot's matcher accepts, but with every `wrong`-th token replaced.
std::vector<std::int32_t> text_like(int seed, int length, int wrong) {
  Fake matcher = fake_of(seed, length);
  std::vector<std::int32_t> text;
  while (!matcher.ended()) {
    std::int32_t token = 0;
    while (fake_accept(&matcher, token) != 1) ++token;
    text.push_back(static_cast<int>(text.size()) % wrong == wrong - 1 ? (token + 1) % kVocab : token);
  }
  return text;
}

// Checks that the matcher accepts the slot's text up to its first end token.
void check_text(const std::vector<std::int64_t> &text, int seed, int length) {
  Fake matcher = fake_of(seed, length);
  for (std::int64_t token : text) {
    if (matcher.ended()) break;
    CHECK(fake_accept(&matcher, static_cast<std::int32_t>(token)) == 1);
  }
}

TEST_CASE("texts are in the grammar whatever is proposed") {
  const std::vector<int> slots = {3, 0, 4, 1, 2, kSlots};
  for (int workers : {0, 2}) {
    Decoding decoding(workers);
    for (int i = 0; i < kIterations; ++i) {
      GuidedState::Attach attach;
      // Each slot gets one matcher, so its whole text can be checked at the end.
      if (i == 0)
        for (int slot = 0; slot < kSlots - 1; ++slot) attach.emplace_back(slot, make(fake_of(slot, 20 + 30 * slot)));
      if (i % 7 == 0)
        for (int slot = 0; slot < kSlots; ++slot) {
          const std::vector<std::int32_t> prompt(static_cast<std::size_t>(i + 1), slot + 1);
          decoding.ngram->open(slot, prompt.data(), static_cast<int>(prompt.size()), i % 2 ? 500 : 0);
          decoding.ahead->open(slot, prompt.data(), static_cast<int>(prompt.size()), 0,
                               {i % 3 + 1, 2 + i % 2, i % 4 + 1}, {1, 2, slot});
          const auto text = text_like(slot, 20 + 30 * slot, i % 3 ? 5 : 1000);
          decoding.given->open(slot, i % 2 ? std::vector<std::int32_t>{} : text, prompt.data(), i % 3);
        }
      if (i % 5 == 0) decoding.ngram->set_guided(i % 2 == 0);
      if (i % 5 == 0) decoding.ahead->set_guided(i % 2 == 0);
      if (i % 5 == 0) decoding.given->set_guided(i % 2 == 0);
      decoding.state.push(slots, std::move(attach));
      decoding.step(i % 6 == 5 ? 0 : kDrafts);
      CHECK(decoding.proposals.counters().calls <= static_cast<std::uint64_t>(i) + 1);
    }
    CHECK_OK(decoding.driver.cuStreamSynchronize(decoding.model));
    CHECK_OK(decoding.driver.cuStreamSynchronize(decoding.grammar));
    CHECK(decoding.state.num_failed() == 0);
    CHECK(decoding.proposals.counters().calls == kIterations);
    for (std::uint64_t proposed : decoding.proposals.counters().tokens) CHECK(proposed > 0);
    CHECK(decoding.accepted > kIterations);
    for (int slot = 0; slot < kSlots - 1; ++slot) check_text(decoding.texts[slot], slot, 20 + 30 * slot);
    for (int j = 0; j < kDrafts; ++j) CHECK(decoding.proposed_host[j * (kSlots + 1) + kSlots] == -1);
  }
  CHECK(live == 0);
}

TEST_CASE("guided proposals are legal") {
  Decoding decoding(2);
  decoding.given->set_guided(true);
  decoding.ngram->set_guided(true);
  decoding.ahead->set_guided(true);
  for (int i = 0; i < kIterations; ++i) {
    GuidedState::Attach attach;
    if (i % 10 == 0)
      for (int slot = 0; slot < kSlots - 1; ++slot) {
        attach.emplace_back(slot, make(fake_of(i + slot, 15)));
        decoding.ngram->open(slot, nullptr, 0, 100);
        decoding.ahead->open(slot, nullptr, 0, 100, kAhead, {0, 1, 2});
        decoding.given->open(slot, text_like(i + slot, 15, 4), nullptr, 0);
      }
    // A slot that gets a new matcher still has drafts from the old one, so clear them while nothing runs.
    if (i % 10 == 0) CHECK_OK(decoding.driver.cuStreamSynchronize(decoding.grammar));
    if (i % 10 == 0) CHECK_OK(decoding.driver.cuStreamSynchronize(decoding.model));
    if (i % 10 == 0) std::fill(decoding.drafts.begin(), decoding.drafts.end(), -1);
    decoding.state.push({0, 1, 2, 3}, std::move(attach));
    decoding.step(kDrafts);
  }
  CHECK_OK(decoding.driver.cuStreamSynchronize(decoding.model));
  CHECK_OK(decoding.driver.cuStreamSynchronize(decoding.grammar));
  CHECK(decoding.state.num_failed() == 0);
  CHECK(decoding.illegal == 0);
}

}  // namespace
