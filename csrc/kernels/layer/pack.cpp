#include "kernels/layer/pack.h"

#include <algorithm>
#include <cstring>

#include "kernels/layer/formats.h"

namespace weft {
namespace {

constexpr std::int64_t kInputs = 32;   // of a tile, and of a step: a cache line of 16-bit weights
constexpr std::int64_t kOutputs = 16;  // of a tile

// Where inputs `begin`..`begin` + kInputs - 1 of an output lie in its panel. From there on, inputs follow each other at
// a distance of kPanel in panels, and pairs of inputs at a distance of 2 * kOutputs in tiles.
std::int64_t place(std::int64_t begin, std::int64_t lane, bool tiled) {
  if (!tiled) return begin * kPanel + lane;
  return begin * kPanel + lane / kOutputs * kInputs * kOutputs + lane % kOutputs * 2;
}

template <class W>
void pack(const PackCall &call) {
  const std::int64_t *sizes = call.sizes, *strides = call.strides, inputs = call.inputs;
  const std::int64_t outputs = sizes[0] * sizes[1] * sizes[2];
  const auto *weight = static_cast<const W *>(call.weight);
  auto *packed = static_cast<W *>(call.packed);
  const W *rows[kPanel];
  for (std::int64_t done = 0, count; done < outputs; done += count) {
    const std::int64_t panel = (call.first + done) / kPanel, lane = (call.first + done) % kPanel;
    count = std::min(kPanel - lane, outputs - done);
    for (std::int64_t n = 0; n < count; ++n) {
      const std::int64_t o = done + n, inner = o % sizes[2], outer = o / sizes[2];
      rows[n] = weight + inner * strides[2] + outer % sizes[1] * strides[1] + outer / sizes[1] * strides[0];
    }
    // Rows are read by cache lines: their distance may be a power of two, and then few lines stay in the cache.
    for (std::int64_t begin = 0; begin < inputs; begin += kInputs) {
      const std::int64_t end = std::min(begin + kInputs, inputs);
      for (std::int64_t n = 0; n < count; ++n) {
        const W *from = rows[n];
        W *to = packed + panel * call.panel_step + place(begin, lane + n, call.tiled);
        std::int64_t i = begin;
        if (call.tiled) {
          for (; i + 1 < end; i += 2, to += 2 * kOutputs) std::memcpy(to, from + i, 2 * sizeof(W));
          if (i < end) *to = from[i];
        } else {
          for (; i < end; ++i, to += kPanel) *to = from[i];
        }
      }
    }
  }
}

}  // namespace

void pack_cpu(const PackCall &call) {
  if (call.element == 2)
    pack<std::uint16_t>(call);
  else
    pack<std::uint32_t>(call);
}

}  // namespace weft
