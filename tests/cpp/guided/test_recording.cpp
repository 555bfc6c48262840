// A guided state's recording of its operations: the ring, the hashes, and reads during writes.
#include <atomic>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "check.h"
#include "fake_matcher.h"
#include "guided/flight_log.h"
#include "guided/state.h"
#include "support/row_hash.h"

namespace {

using weft::FlightLog;
using weft::GuidedState;
using weft::test::fake_of, weft::test::kEnd, weft::test::kVocab, weft::test::make;

using Words = std::vector<std::int64_t>;

// Whether `words` are whole records.
bool is_whole(const Words &words) {
  std::size_t at = 0;
  while (at < words.size() && words[at] > 0) at += static_cast<std::size_t>(words[at]);
  return at == words.size();
}

TEST_CASE("the ring keeps the last whole records") {
  constexpr std::size_t kCapacity = 101, kLongest = 40;
  FlightLog log(kCapacity, kLongest);
  CHECK(log.records().empty());
  std::mt19937 random(3);
  Words all;
  for (int i = 0; i < 2000; ++i) {
    const std::size_t length = 1 + random() % kLongest;
    log.begin();
    for (std::size_t k = 1; k < length; ++k) log.put(static_cast<std::int64_t>(random()));
    log.end();
    const Words kept = log.records();
    CHECK(is_whole(kept));
    CHECK(kept.size() <= kCapacity);
    CHECK((kept.size() + kLongest > kCapacity || kept.size() >= all.size()));
    CHECK(kept[kept.size() - length] == length);
    // The records before the new one are the newest of the earlier ones: only the oldest may be dropped.
    if (!all.empty())
      CHECK(std::equal(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(length),
                       all.end() - static_cast<std::ptrdiff_t>(kept.size() - length)));
    all = kept;
  }
}

TEST_CASE("every token bit changes a rows hash and padding does not") {
  for (int vocab : {1, 31, 32, 33, 511, 512, 513, 1100}) {
    const int words = (vocab + 31) / 32;
    const std::uint32_t last = vocab % 32 ? (1u << (vocab % 32)) - 1 : ~0u;
    for (std::uint32_t fill : {0u, ~0u, 0xa5a5a5a5u}) {
      std::vector<std::int32_t> row(static_cast<std::size_t>(words), static_cast<std::int32_t>(fill));
      const auto hash = [&](int applied) { return weft::hash_row(row.data(), words, last, applied); };
      std::set<std::uint64_t> seen{hash(1)};
      CHECK(seen.insert(hash(0)).second);
      for (int bit = 0; bit < 32 * words; ++bit) {
        auto &word = row[static_cast<std::size_t>(bit / 32)];
        word ^= static_cast<std::int32_t>(1u << (bit % 32));
        if (bit < vocab)
          CHECK(seen.insert(hash(1)).second);
        else
          CHECK(hash(1) == [&] {
            auto same = row;
            same[static_cast<std::size_t>(bit / 32)] ^= static_cast<std::int32_t>(1u << (bit % 32));
            return weft::hash_row(same.data(), words, last, 1);
          }());
        word ^= static_cast<std::int32_t>(1u << (bit % 32));
      }
    }
  }
}

TEST_CASE("records are read while operations go on") {
  constexpr int kSlots = 4, kDrafts = 3, kWords = 3, kWidth = kDrafts + 1;
  std::vector<std::int64_t> drafts(kDrafts * (kSlots + 1), -1), verified((kSlots + 1) * (kDrafts + 2));
  std::vector<std::int32_t> masks((kSlots + 1) * kWidth * kWords), flags((kSlots + 1) * kWidth);
  GuidedState state({kSlots, kDrafts, kVocab}, {kEnd}, {drafts.data(), verified.data(), masks.data(), flags.data()}, 2);
  bool refused = false;
  try {
    state.record(10);
  } catch (const std::invalid_argument &) {
    refused = true;
  }
  CHECK(refused);
  CHECK(state.recorded().empty());
  state.record(2000);
  std::atomic<bool> is_done{false};
  std::thread reader([&] {
    while (!is_done) CHECK(is_whole(state.recorded()));
  });
  std::mt19937 random(5);
  for (int i = 0; i < 500; ++i) {
    GuidedState::Attach attach;
    if (i % 9 == 0)
      for (int slot = 0; slot < kSlots; ++slot) attach.emplace_back(slot, make(fake_of(slot + i, 20)));
    state.push({0, 1, 2, 3, kSlots, kSlots}, std::move(attach));
    state.fetch();
    for (auto &draft : drafts) draft = static_cast<std::int64_t>(random() % kVocab);
    state.extend_through(kDrafts);
    for (int slot = 0; slot < kSlots; ++slot) {
      const int kept = state.extended(slot);
      verified[static_cast<std::size_t>(slot * (kDrafts + 2))] = kept;
      for (int k = 0; k < kept; ++k)
        verified[static_cast<std::size_t>(slot * (kDrafts + 2) + 1 + k)] =
            drafts[static_cast<std::size_t>(k * (kSlots + 1) + slot)];
      verified[static_cast<std::size_t>(slot * (kDrafts + 2) + 1 + kept)] = static_cast<std::int64_t>(random() % 7);
    }
    state.commit();
  }
  is_done = true;
  reader.join();
  const Words words = state.recorded();
  CHECK(words.size() > 1000);
  state.record(0);
  CHECK(state.recorded().empty());
}

}  // namespace
