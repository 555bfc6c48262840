// The rules of truncation for one row. The arithmetic gives the same bits on every device.
//
// Probabilities are summed as integers, so the order of summation does not matter. Each cut is a threshold in the order
// of the logits, found by narrowing a range of their keys (kernels/floats.h). A histogram over equal parts of the range
// shows in which part the wanted amount is reached; that part is the next range. Three rounds narrow 32 bits to one
// key.
#pragma once

#include "kernels/sampling/gumbel.h"
#include "kernels/sampling/slot_record.h"
#include "kernels/sampling/truncation.h"

namespace weft {

constexpr int kBins = 2048;
constexpr std::uint32_t kLowestKey = 0x00800000u;  // of the lowest finite float; -inf and NaN have lower keys

// The key of a logit. -inf and NaN have key 0, which is in no range.
WEFT_HD std::uint32_t key_of(float x) { return x > -kInfinity ? ordered(x) : 0; }

// Keys from `low` to `high`, divided into at most kBins parts of 2^shift keys, numbered from the top down.
struct KeyRange {
  std::uint32_t low, high;

  WEFT_HD int shift() const {
    int bits = 0;
    while ((high - low) >> bits >= kBins) ++bits;
    return bits;
  }
  WEFT_HD bool holds(std::uint32_t key) const { return key - low <= high - low; }
  WEFT_HD std::uint32_t part(std::uint32_t key, int shift) const { return (high - key) >> shift; }
  WEFT_HD KeyRange of_part(std::uint32_t part, int shift) const {
    const std::uint32_t top = high - (part << shift), width = (1u << shift) - 1u;
    return {top - low > width ? top - width : low, top};
  }
};

constexpr float kLowestPower = -60.0f;  // bounds a shift; the mass is 0 below 2^-40 already
constexpr float kMassPower = -42.0f;

// The probability of a logit divided by that of the largest, `top`, in units of 2^-40, rounded down. `scale` is log2(e)
// / temperature.
WEFT_HD std::uint64_t mass_of(float x, float top, float scale) {
  const float exact = mul_rn(x == top ? 0.0f : add_rn(x, -top), scale);
  const float power = exact > kLowestPower ? exact : kLowestPower;
  const float shifted = add_rn(power, 0x1.8p23f);  // rounded to an integer, in the low bits
  const std::uint32_t whole = float_bits(shifted) - float_bits(0x1.8p23f);
  const float f = add_rn(power, -add_rn(shifted, -0x1.8p23f));
  float p = 0x1.41fb6cp-13f;  // 2^f for f between -1/2 and 1/2, to a unit in the last place or so: a minimax fit
  p = add_rn(mul_rn(p, f), 0x1.5f3e52p-10f);
  p = add_rn(mul_rn(p, f), 0x1.3b2d4ep-7f);
  p = add_rn(mul_rn(p, f), 0x1.c6aee8p-5f);
  p = add_rn(mul_rn(p, f), 0x1.ebfbdcp-3f);
  p = add_rn(mul_rn(p, f), 0x1.62e430p-1f);
  p = add_rn(mul_rn(p, f), 1.0f);
  const std::uint32_t bits = float_bits(p) + (whole << 23);
  return (std::uint64_t{(bits & 0x7fffffu) | 0x800000u} << 17) >> (127u - (bits >> 23));
}

WEFT_HD float mass_scale(float temperature) { return div_rn(0x1.715476p+0f, temperature); }

// Returns a bound: logits with lower keys have mass 0.
WEFT_HD std::uint32_t lowest_with_mass(float top, float scale) {
  const std::uint32_t key = key_of(add_rn(top, div_rn(kMassPower, scale)));
  return key > kLowestKey ? key : kLowestKey;
}

// The mass that top-p wants of `total`: at least one unit, so that the largest logit stays.
WEFT_HD std::uint64_t wanted_mass(float top_p, std::uint64_t total) {
  const double share = static_cast<double>(top_p) * static_cast<double>(total);
  auto units = share > 0 ? static_cast<std::uint64_t>(share) : 0;
  if (static_cast<double>(units) < share) ++units;
  if (units > total) units = total;
  return units > 0 ? units : 1;
}

// The cuts of one row. The kernels of both devices find the threshold of top-k and top-p in the row. `floor` then adds
// the cuts that follow from the largest logit alone.
struct Cuts {
  float temperature, top_p, min_p;
  std::int64_t top_k;  // 0: all

  // `row_temperature` and `row_top_p` replace the record's values: a guide may change the first, the row's earlier
  // drafts the second. `vocab` is the number of the row's logits. A greedy row has no cuts.
  WEFT_HD Cuts(const SlotRecord &record, float row_temperature, float row_top_p, std::int64_t vocab)
      : temperature(row_temperature), top_p(row_top_p), min_p(record.min_p), top_k(record.top_k) {
    if (top_k <= 0 || top_k >= vocab) top_k = 0;
    if (!(temperature >= kLowestTemperature)) top_k = 0, top_p = 1, min_p = 0;
  }
  WEFT_HD bool by_mass() const { return top_p < 1; }
  WEFT_HD bool any() const { return top_k > 0 || by_mass() || min_p > 0; }

  // The row's floor. `key` is the threshold of top-k and top-p, 0 for none; `top` is the largest logit, above -inf.
  WEFT_HD float floor(std::uint32_t key, float top) const {
    float floor = key > 0 ? unordered(key) : -kInfinity;
    if (min_p > 0) floor = larger_of(floor, min_p_floor(top));
    return floor;
  }

 private:
  WEFT_HD static float larger_of(float a, float b) { return b > a ? b : a; }
  // A token with min_p times the largest probability has a logit that is temperature * log(1 / min_p) below the
  // largest.
  WEFT_HD float min_p_floor(float top) const {
    const float share = min_p < 1 ? (min_p > 0x1p-126f ? min_p : 0x1p-126f) : 1.0f;
    return add_rn(top, mul_rn(temperature, log_normal(share)));
  }
};

}  // namespace weft
