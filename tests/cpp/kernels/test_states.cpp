// Layers with a state by slot: the same bits with several threads as with one. Under ThreadSanitizer, no block reads
// what another one writes.
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/layer/convolve.h"
#include "kernels/layer/recur.h"

namespace {

using namespace weft;

using Integers = std::vector<std::int64_t>;
using Floats = std::vector<float>;

constexpr std::int64_t kSlots = 5, kStorageRows = 2 * kSlots + 2, kDrafts = 4, kHeads = 8, kKeyHeads = 4, kKeySize = 48,
                       kValueSize = 56, kChannels = 900, kTaps = 4;
constexpr std::int64_t kBlocks = (kValueSize + kStateColumns - 1) / kStateColumns;
constexpr std::int64_t kBase = kHeads * kBlocks * kKeySize * kStateColumns;
constexpr std::int64_t kDecay = kHeads * std::max(kKeySize, kValueSize), kKey = kKeyHeads * kKeySize,
                       kValue = kHeads * kValueSize, kDraft = kDecay + kKey + kValue;

std::mt19937 g_random(5);

Floats floats(std::int64_t count, float low, float high) {
  std::uniform_real_distribution<float> draw(low, high);
  Floats values(static_cast<std::size_t>(count));
  for (float &value : values) value = draw(g_random);
  return values;
}

// All that a layer keeps, and the outputs of its calls.
struct Layer {
  Floats base = floats(kStorageRows * kBase, -1, 1), drafts = floats(kSlots * kDrafts * kDraft, 0, 0.5f);
  Floats window = floats(kStorageRows * (kTaps - 1) * kChannels, -1, 1);
  Floats inputs = floats(kSlots * kDrafts * kChannels, -1, 1);
  Floats out, convolved;

  RecurrentCache recurrent() {
    float *at = drafts.data();
    return {base.data(), at,      at + kDecay, at + kDecay + kKey, kBase,    kDrafts * kDraft,
            kDraft,      kDrafts, kHeads,      kKeyHeads,          kKeySize, kValueSize};
  }
  ConvolutionCache convolution() {
    return {window.data(), inputs.data(), (kTaps - 1) * kChannels, kDrafts * kChannels, kChannels, kDrafts,
            kChannels,     kTaps};
  }
};

bool same(const Floats &a, const Floats &b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Slots 0 and 1 verify drafts; slot 2 begins a prompt in two parts, the second of which is saved, and decodes its last
// token; slot 3 reads the storage row of slot 0, and the last row pads.
struct Call {
  Integers slots{0, 2, 1, 3, 2, 2, 4}, starts{0, 5, 6, 9, 14, 31, 52, 54}, base{9, 38, 20, 7, 0, 17, 0};
  Integers source{0, 1, 2, 0, 4}, target{5, 1, 2, 3, 4}, owed{3, 4, 0, 0, 0}, saves{-1, -1, -1, -1, -1, 11, -1};

  StateRows rows() const {
    return {base.data(),
            nullptr,
            starts.data(),
            slots.data(),
            source.data(),
            target.data(),
            owed.data(),
            saves.data(),
            7,
            64,
            0,
            4,
            kSlots};
  }
};

void run(Layer &layer, Decay kind, bool is_delta, bool has_gates, int threads) {
  const Call call;
  const std::int64_t tokens = call.starts.back();
  std::mt19937 before = g_random;  // the same inputs for each number of threads
  const Floats q = floats(tokens * kKey, -1, 1), k = floats(tokens * kKey, -0.2f, 0.2f);
  const Floats v = floats(tokens * kValue, -1, 1), decay = floats(tokens * kDecay, 0.5f, 1);
  const Floats beta = floats(tokens * kHeads, 0, 1), rates = floats(kHeads * kKeySize * kValueSize, -1, 0);
  const Floats x = floats(tokens * kChannels, -1, 1), weight = floats(kChannels * kTaps, -1, 1);
  g_random = before;
  layer.out.assign(static_cast<std::size_t>(tokens * kValue), 0), layer.convolved.assign(x.size(), 0);
  recur_cpu({call.rows(), layer.recurrent(), q.data(), k.data(), v.data(), decay.data(),
             is_delta ? beta.data() : nullptr, rates.data(), has_gates ? beta.data() : nullptr, beta.data(),
             layer.out.data(), kKey, kKey, kValue, kDecay, kHeads, kind, threads});
  convolve_cpu({call.rows(), layer.convolution(), x.data(), weight.data(), nullptr, layer.convolved.data(), kChannels,
                kTaps, 1, true, threads});
  const Integers slots{0, 2, 4}, targets{10, 3, 0}, counts{2, 0, 0};
  settle_recurrence_cpu({layer.recurrent(), rates.data(), call.target.data(), slots.data(), targets.data(),
                         counts.data(), 3, kSlots, kind, threads});
  Integers source = call.source, target = call.target, owed = call.owed;
  load_states_cpu({layer.base.data(), source.data(), target.data(), owed.data(), kBase, kSlots, threads},
                  targets.data(), slots.data(), 2);
}

void threads_agree(Decay kind, bool is_delta, bool has_gates = false) {
  const Layer before;
  Layer alone = before;
  run(alone, kind, is_delta, has_gates, 1);
  CHECK_FALSE(same(alone.base, before.base));
  for (int round = 0; round < 8; ++round) {
    Layer together = before;
    run(together, kind, is_delta, has_gates, 4);
    CHECK(same(together.out, alone.out));
    CHECK(same(together.convolved, alone.convolved));
    CHECK(same(together.base, alone.base));
    CHECK(same(together.drafts, alone.drafts));
    CHECK(same(together.window, alone.window));
    CHECK(same(together.inputs, alone.inputs));
  }
}

TEST_CASE("threads do not change bits") {
  SUBCASE("gated delta") { threads_agree(Decay::kHead, true); }
  SUBCASE("gated delta with its gates") { threads_agree(Decay::kHead, true, true); }
  SUBCASE("Mamba 2") { threads_agree(Decay::kHead, false); }
  SUBCASE("KDA") { threads_agree(Decay::kKey, true); }
  SUBCASE("Mamba 1") { threads_agree(Decay::kElement, false); }
}

TEST_CASE("rows of a slot form a chain") {
  const Call call;
  const Chains &all = chains_of(call.rows(), kDrafts);
  CHECK(all.chains.size() == 4);
  CHECK(all.tokens == 52);
  for (const Chain &chain : all.chains) {
    if (chain.slot == 0) CHECK((chain.source == 0 && chain.target == 5 && chain.owed == 3));
    if (chain.slot != 2) continue;
    CHECK((chain.source == -1 && chain.owed == 0 && chain.tokens == 39));
    REQUIRE(chain.end - chain.begin == 3);
    const ChainRow *rows = all.rows.data() + chain.begin;
    CHECK((rows[0].first == 14 && rows[0].count == 17 && rows[0].saves == -1 && !rows[0].is_speculative));
    CHECK((rows[1].first == 31 && rows[1].count == 21 && rows[1].saves == 11 && !rows[1].is_speculative));
    CHECK((rows[2].first == 5 && rows[2].count == 1 && rows[2].saves == -1 && rows[2].is_speculative));
  }
}

TEST_CASE("beams read their parents' rows") {
  Integers source{0, 1, 2, 3, 4}, target{0, 6, 2, 3, 4}, owed{1, 1, 1, 1, 1};
  const Integers slots{1, 0, 2, 4}, parents{0, 1, 1, 0};
  branch_states_cpu({nullptr, source.data(), target.data(), owed.data(), 0, kSlots, 1}, slots.data(), parents.data(),
                    4);
  CHECK(source == Integers{6, 0, 6, 3, 4});
  CHECK(target == Integers{5, 1, 7, 3, 4});
  CHECK(owed == Integers{0, 0, 0, 1, 1});
  const Integers opened{1, 4};
  open_states_cpu({nullptr, source.data(), target.data(), owed.data(), 0, kSlots, 1}, opened.data(), 2);
  CHECK(source == Integers{6, 1, 6, 3, 4});
}

}  // namespace
