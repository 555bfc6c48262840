// The parameters of one row's draw, the same on every device: temperature, floor, and the random words of its noise.
#pragma once

#include "kernels/sampling/gumbel.h"
#include "kernels/sampling/sampling.h"

namespace weft {

struct RowDraw {
  float temperature, floor;
  bool greedy;
  bool is_skipped = false;  // the row's logits are not read, and it gets no token
  std::uint32_t seed_low, seed_high, position_low, position_high;

  WEFT_HD RowDraw(float temperature_, float floor_, std::int64_t seed, std::int64_t position)
      : temperature(temperature_), floor(floor_), greedy(!(temperature_ >= kLowestTemperature)) {
    const auto seed_bits = static_cast<std::uint64_t>(seed), position_bits = static_cast<std::uint64_t>(position);
    seed_low = static_cast<std::uint32_t>(seed_bits), seed_high = static_cast<std::uint32_t>(seed_bits >> 32);
    position_low = static_cast<std::uint32_t>(position_bits);
    position_high = static_cast<std::uint32_t>(position_bits >> 32);
  }

  // The random words of tokens 4 * group to 4 * group + 3.
  WEFT_HD PhiloxWords words(std::uint32_t group) const {
    return philox4x32_10(position_low, position_high, group, kPurposeSample, seed_low, seed_high);
  }
  WEFT_HD std::uint32_t word(std::uint32_t token) const {
    const PhiloxWords four = words(token / 4);
    const std::uint32_t low = token & 1u ? four.word[1] : four.word[0];
    const std::uint32_t high = token & 1u ? four.word[3] : four.word[2];
    return token & 2u ? high : low;
  }
};

}  // namespace weft
