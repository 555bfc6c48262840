#include "kernels/layer/mxfp4.h"

#include <array>
#include <cmath>
#include <limits>

#include "kernels/floats.h"

namespace weft {
namespace {

constexpr int kValues = 16, kScales = 256, kBytes = 16;  // kBytes: of a block
constexpr float kMagnitudes[kValues / 2] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

using Values = std::array<std::uint16_t, kValues>;

// For each scale, the bfloat16 of each 4 bits. All but infinity are exact.
std::array<Values, kScales> make_tables() {
  std::array<Values, kScales> tables{};
  for (int scale = 0; scale < kScales; ++scale) {
    const float factor = scale == kScales - 1 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0F, scale - 127);
    for (int i = 0; i < kValues; ++i) {
      const float magnitude = kMagnitudes[i % (kValues / 2)];
      const float value = (i < kValues / 2 ? magnitude : -magnitude) * factor;
      tables[static_cast<std::size_t>(scale)][static_cast<std::size_t>(i)] =
          static_cast<std::uint16_t>(float_bits(value) >> 16);
    }
  }
  return tables;
}

}  // namespace

void mxfp4_cpu(const Mxfp4Call &call) {
  static const std::array<Values, kScales> tables = make_tables();
  std::uint16_t *out = call.out;
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const std::uint8_t *block = call.blocks + row * call.block_row, *scales = call.scales + row * call.scale_row;
    for (std::int64_t group = 0; group < call.groups; ++group, block += kBytes, out += 2 * kBytes) {
      const Values &values = tables[scales[group]];
      for (int i = 0; i < kBytes; ++i) {
        out[2 * i] = values[block[i] & 15];
        out[2 * i + 1] = values[block[i] >> 4];
      }
    }
  }
}

}  // namespace weft
