// The code for each instruction set gives the same bits. The extension selects one set for the machine at its start, so
// its tests see only that one. These tests include the sources to call the internal functions of every set.
#include <cstring>
#include <vector>

#include "kernels/mask/token_mask.cpp"
#include "kernels/sampling/penalties.cpp"
#include "kernels/sampling/sampling.cpp"
#include "kernels/sampling/suppress_ends.cpp"
#include "kernels/sampling/truncation.cpp"
#include "random_sampling.h"

namespace {

using namespace weft;

bool has_avx2() { return instruction_set() != InstructionSet::kPlain; }
bool has_avx512() { return instruction_set() == InstructionSet::kAvx512; }

template <class T>
void blocks_as_bit_by_bit(const char *name, BlockWords<T> block_words, T neg_inf) {
  for (std::int64_t words = 0; words < 40; ++words) {
    std::vector<std::uint32_t> allowed(static_cast<std::size_t>(words));
    for (std::uint32_t &word : allowed) {
      const std::uint64_t draw = g_random();
      word = draw % 3 == 0 ? 0u : draw % 3 == 1 ? 0xffffffffu : static_cast<std::uint32_t>(draw >> 8);
    }
    std::vector<T> x(static_cast<std::size_t>(32 * words) + 2);  // one extra element on each side
    for (T &value : x) value = static_cast<T>(g_random());
    std::vector<T> expected = x;
    for (std::int64_t c = 0; c < 32 * words; ++c) {
      if (!(allowed[c / 32] >> (c % 32) & 1u)) expected[c + 1] = neg_inf;
    }
    block_words(x.data() + 1, allowed.data(), words, neg_inf);
    CAPTURE(name);
    CAPTURE(words);
    CAPTURE(sizeof(T));
    REQUIRE((x == expected));
  }
}

template <class T>
void blocks(T neg_inf) {
  blocks_as_bit_by_bit<T>("plain", block_words_plain<T>, neg_inf);
#if defined(__x86_64__)
  if (has_avx2()) blocks_as_bit_by_bit<T>("AVX2", block_words_avx2<T>, neg_inf);
  if (has_avx512()) blocks_as_bit_by_bit<T>("AVX-512", block_words_avx512<T>, neg_inf);
#endif
}

// Rows are flat, so that the last bit of the noise often decides, or steep. Half-precision logits have any bit pattern.
void samples_alike(DType dtype, bool with_d2t) {
  constexpr std::int64_t kRows = 48, kVocab = 3001;
  std::normal_distribution<float> normal;
  std::vector<std::uint32_t> storage(kRows * kVocab);
  for (std::size_t i = 0; i < storage.size(); ++i) {
    storage[i] = dtype == DType::kFloat32 ? float_bits(float(i / kVocab % 3) * normal(g_random))
                                          : static_cast<std::uint32_t>(g_random());
  }
  std::vector<RowDraw> draws;
  std::vector<std::int64_t> d2t, plain(kRows, -7), other(kRows, -7);
  for (std::int64_t i = 0; i < kRows; ++i) {
    const float temperature = i % 5 ? 0.3f * static_cast<float>(i % 5) : 0.0f, floor = i % 7 ? -INFINITY : 0.1f;
    const auto seed = static_cast<std::int64_t>(g_random()), position = static_cast<std::int64_t>(g_random());
    draws.emplace_back(temperature, floor, seed, position);
  }
  for (std::int64_t c = 0; c < kVocab; ++c) d2t.push_back(static_cast<std::int64_t>(g_random() % 9000));
  SampleCall call{
      {storage.data(), dtype, kRows, kVocab, kVocab}, draws.data(), with_d2t ? d2t.data() : nullptr, plain.data()};
  sample_plain(call, 0, kRows);
  call.out = other.data();
#if defined(__x86_64__)
  if (has_avx2()) {
    sample_avx2(call, 0, kRows);
    CHECK((other == plain));
  }
  if (has_avx512()) {
    sample_avx512(call, 0, kRows);
    CHECK((other == plain));
  }
#endif
}

using TruncateRows = void (*)(const TruncateCall &, std::int64_t, std::int64_t);
using PenalizeRows = void (*)(const PenalizeCall &, std::int64_t, std::int64_t);
using SuppressRows = void (*)(const SuppressCall &, std::int64_t, std::int64_t);

bool truncates_as_plain(TruncateRows rows) {
  AnyTruncation any_call;
  truncate_plain(any_call.call, 0, any_call.rows);
  std::vector<float> other(any_call.floor.size(), -7.0f);
  any_call.call.floor = other.data();
  rows(any_call.call, 0, any_call.rows);
  return std::memcmp(other.data(), any_call.floor.data(), other.size() * sizeof(float)) == 0;
}

bool penalizes_as_plain(PenalizeRows rows) {
  AnyPenalties any_call;
  AnyLogits other = any_call.logits;
  penalize_plain(any_call.call, 0, any_call.rows);
  any_call.call.logits = other.view();
  rows(any_call.call, 0, any_call.rows);
  return any_call.logits == other;
}

bool suppresses_as_plain(SuppressRows rows) {
  AnySuppression any_call;
  AnyLogits other = any_call.logits;
  suppress_plain(any_call.call, 0, any_call.rows);
  any_call.call.logits = other.view();
  rows(any_call.call, 0, any_call.rows);
  return any_call.logits == other;
}

void changes_alike(TruncateRows truncate, PenalizeRows penalize, SuppressRows suppress) {
  for (int i = 0; i < 300; ++i) {
    CAPTURE(i);
    REQUIRE(truncates_as_plain(truncate));
    REQUIRE(penalizes_as_plain(penalize));
    REQUIRE(suppresses_as_plain(suppress));
  }
}

TEST_CASE("masks are applied as bit by bit") {
  blocks<std::uint32_t>(kNegInf32);
  blocks<std::uint16_t>(kNegInfHalf);
}

TEST_CASE("all instruction sets sample the same tokens") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
    for (const bool with_d2t : {false, true}) samples_alike(dtype, with_d2t);
}

#if defined(__x86_64__)
TEST_CASE("AVX2 truncates, penalizes and suppresses as plain code" * doctest::skip(!has_avx2())) {
  changes_alike(truncate_avx2, penalize_avx2, suppress_avx2);
}

TEST_CASE("AVX-512 truncates, penalizes and suppresses as plain code" * doctest::skip(!has_avx512())) {
  changes_alike(truncate_avx512, penalize_avx512, suppress_avx512);
}
#endif

}  // namespace
