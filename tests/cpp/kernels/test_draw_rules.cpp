// The rules that decide a token, checked in double precision: the Gumbel noise of a random word, and the floors of
// truncation, which are compared with sorting. Both are internal, so no operation returns them.
#include <algorithm>
#include <functional>

#include "kernels/columns.h"
#include "kernels/sampling/gumbel.h"
#include "random_sampling.h"

namespace {

using namespace weft;

bool philox_gives_the_published_words() {
  struct Known {
    std::uint32_t c0, c1, c2, c3, k0, k1;
    PhiloxWords words;
  };
  constexpr std::uint32_t kOnes = 0xffffffffu;
  const Known known[] = {
      {0, 0, 0, 0, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
      {kOnes, kOnes, kOnes, kOnes, kOnes, kOnes, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
      {0x243f6a88,
       0x85a308d3,
       0x13198a2e,
       0x03707344,
       0xa4093822,
       0x299f31d0,
       {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
  };
  for (const Known &k : known) {
    const PhiloxWords words = philox4x32_10(k.c0, k.c1, k.c2, k.c3, k.k0, k.k1);
    if (!std::equal(words.word, words.word + 4, k.words.word)) return false;
  }
  return true;
}

// Uses 1 - u instead of u, because near 1 - u = 0 doubles are finer than near u = 1.
bool noise_is_right(std::uint32_t word) {
  const double below_one = (static_cast<double>(~word) + 0.5) * 0x1p-32;
  const double exact = -std::log(-std::log1p(-below_one));
  const float noise = gumbel(word);
  return std::fabs(noise - exact) < 3e-6 && noise > -3.14f && noise < kLargestNoise && gumbel_bound(word) >= noise;
}

bool noise_is_a_gumbel_variate() {
  for (std::uint32_t i = 0; i < 1000; ++i) {
    if (!noise_is_right(i) || !noise_is_right(~i)) return false;
    if (!noise_is_right(0x80000000u - 500 + i)) return false;
  }
  for (int i = 0; i < 200'000; ++i) {
    if (!noise_is_right(static_cast<std::uint32_t>(g_random()))) return false;
  }
  return true;
}

// One of two rows has a floor above all its logits; its token must be -1.
bool a_floor_above_everything_leaves_no_token() {
  for (const float temperature : {0.0f, 1.0f}) {
    std::vector<float> logits(200, 0.0f);
    const std::vector<RowDraw> draws{{temperature, 0.5f, 0, 0}, {temperature, -INFINITY, 0, 0}};
    std::vector<std::int64_t> out{-7, -7};
    const Logits rows{logits.data(), DType::kFloat32, 2, 100, 100};
    sample_cpu({rows, draws.data(), nullptr, out.data()}, 1);
    if (out[0] != -1 || out[1] < 0) return false;
  }
  return true;
}

// Returns row i in double precision, without its NaNs.
std::vector<double> numbers_of(const Logits &logits, std::int64_t i) {
  std::vector<double> x;
  for (std::int64_t c = 0; c < logits.vocab; ++c) {
    const std::int64_t at = i * logits.stride + c;
    float value = 0;
    if (logits.dtype == DType::kFloat32) value = static_cast<const float *>(logits.data)[at];
    if (logits.dtype == DType::kFloat16) value = widen(static_cast<const Half *>(logits.data)[at]);
    if (logits.dtype == DType::kBFloat16) value = widen(static_cast<const BFloat16 *>(logits.data)[at]);
    if (!std::isnan(value)) x.push_back(value);
  }
  return x;
}

struct Limits {
  double temperature, top_p, min_p;
  std::int64_t top_k;
};

// Returns the floor of `x`, which is in descending order. A `shift` of -1 or 1 moves the limits down or up by their
// rounding error.
double floor_of(const std::vector<double> &x, const Limits &limits, double shift) {
  double floor = -INFINITY;
  std::size_t kept = x.size();
  if (limits.top_k > 0 && limits.top_k <= static_cast<std::int64_t>(x.size())) {
    floor = x[static_cast<std::size_t>(limits.top_k - 1)];
    while (x[kept - 1] < floor) --kept;
  }
  const auto share = [&](double one) {
    const double power = one == x[0] ? 0 : (one - x[0]) / limits.temperature;
    return std::isnan(power) ? 0 : std::exp(power);
  };
  if (limits.top_p < 1) {
    double total = 0, sum = 0;
    for (std::size_t c = 0; c < kept; ++c) total += share(x[c]);
    std::size_t last = 0;
    for (std::size_t c = 0; c < kept && (c == 0 || sum < (limits.top_p - 4e-6 * shift) * total); ++c) {
      sum += share(x[c]);
      last = c;
    }
    floor = std::max(floor, x[last]);
  }
  if (limits.min_p > 0 && std::isfinite(limits.temperature)) {
    const double below = limits.temperature * std::log(std::clamp(limits.min_p, 0x1p-126, 1.0));
    const double rounding = 2e-5 * limits.temperature + (std::isfinite(x[0]) ? 2e-7 * (std::fabs(x[0]) - below) : 0);
    floor = std::max(floor, x[0] + below + shift * rounding);
  }
  return std::min(floor, x[0]);
}

bool is_floor_of(std::vector<double> x, const Limits &limits, std::int64_t vocab, float floor) {
  std::sort(x.begin(), x.end(), std::greater<>());
  const bool cuts = limits.temperature >= kLowestTemperature &&
                    ((limits.top_k > 0 && limits.top_k < vocab) || limits.top_p < 1 || limits.min_p > 0);
  if (!cuts || x.empty() || x[0] == -INFINITY) return floor == -INFINITY;
  const double lowest = floor_of(x, limits, -1), highest = floor_of(x, limits, 1);
  for (const double one : x) {
    if (one > -INFINITY && ((one >= highest && one < floor) || (one < lowest && one >= floor))) return false;
  }
  return x[0] >= floor;
}

bool truncation_agrees_with_sorting() {
  AnyTruncation any_call;
  truncation_floor_cpu(any_call.call, 1);
  for (std::int64_t i = 0; i < any_call.rows; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const SlotRecord &record = any_call.records[at];
    Limits limits{record.temperature, record.top_p, record.min_p, record.top_k};
    if (limits.top_k >= any_call.vocab) limits.top_k = 0;
    if (!is_floor_of(numbers_of(any_call.call.logits, i), limits, any_call.vocab, any_call.floor[at])) return false;
  }
  return true;
}

TEST_CASE("published words") { check_often(philox_gives_the_published_words, 1); }
TEST_CASE("noise") { check_often(noise_is_a_gumbel_variate, 1); }
TEST_CASE("floor") { check_often(a_floor_above_everything_leaves_no_token, 1); }
TEST_CASE("truncation") { check_often(truncation_agrees_with_sorting, 3000); }

}  // namespace
