#include "kernels/layer/pack_blocks.h"

#include <algorithm>

#include "kernels/layer/block_codes.h"

namespace weft {
namespace {

constexpr std::int64_t kGroup = 16;  // outputs whose words lie side by side

// Writes output `lane` of a half's block, all but its high bits.
template <Format kFormat>
void write_output(const BlockCodes &codes, std::int64_t lane, char *half) {
  if constexpr (kFormat == Format::kFP8) {
    const auto *bytes = reinterpret_cast<const char *>(codes.words);
    for (std::int64_t i = 0; i < block_of(kFormat).inputs; ++i) half[i * kHalf + lane] = bytes[i];
  } else {
    char *first = half + word_at(kFormat, 0, lane);
    for (std::int64_t w = 0; w < code_words(kFormat); ++w) write_as(first + word_at(kFormat, w, 0), codes.words[w]);
  }
  const std::uint8_t *from = codes.scales;
  char *to = half + scales_at(kFormat);
  for (const ScaleRun &run : half_layout(kFormat).runs) {
    for (int n = 0; n < run.count; ++n, from += run.size, to += run.size * kHalf)
      std::memcpy(to + lane * run.size, from, static_cast<std::size_t>(run.size));
  }
}

// Packs all blocks of `count` outputs from `lane` on, which are in one group of a half.
template <Format kFormat>
void pack_group(const std::uint8_t *const *rows, std::int64_t count, std::int64_t lane, std::int64_t blocks,
                char *half) {
  constexpr Block kBlock = block_of(kFormat);
  constexpr int kPlanes = half_layout(kFormat).planes, kSubs = static_cast<int>(kBlock.inputs / kSub);
  for (std::int64_t b = 0; b < blocks; ++b, half += kBlock.half_bytes) {
    std::uint64_t planes[std::max(kPlanes, 1)][kSubs][8] = {};
    BlockCodes codes;
    for (std::int64_t n = 0; n < count; ++n) {
      read_block<kFormat>(rows[n] + b * kBlock.bytes, codes);
      write_output<kFormat>(codes, lane + n, half);
      const std::int64_t shift = (lane + n) % kGroup * 4;
      for (int plane = 0; plane < kPlanes; ++plane) {
        for (int s = 0; s < kSubs; ++s) {
          for (int w = 0; w < 8; ++w) planes[plane][s][w] |= std::uint64_t{codes.high[plane][s] >> 4 * w & 15} << shift;
        }
      }
    }
    for (int plane = 0; plane < kPlanes; ++plane) {
      for (int s = 0; s < kSubs; ++s) {
        auto *to = reinterpret_cast<std::uint64_t *>(half + plane_at(kFormat, s, lane, plane));
        if (count == kGroup) {
          std::copy_n(planes[plane][s], 8, to);
        } else {  // another thread may write the others of the group
          for (int w = 0; w < 8; ++w) __atomic_fetch_or(to + w, planes[plane][s][w], __ATOMIC_RELAXED);
        }
      }
    }
  }
}

template <Format kFormat>
void pack(const PackBlocksCall &call) {
  const std::int64_t *sizes = call.sizes, *strides = call.strides;
  const std::int64_t outputs = sizes[0] * sizes[1] * sizes[2], inputs = block_of(kFormat).inputs;
  const std::int64_t blocks = (call.inputs + inputs - 1) / inputs, half_bytes = blocks * block_of(kFormat).half_bytes;
  const std::uint8_t *rows[kGroup];
  for (std::int64_t done = 0, count; done < outputs; done += count) {
    const std::int64_t place = call.first + done, lane = place % kHalf;
    count = std::min(kGroup - lane % kGroup, outputs - done);
    for (std::int64_t n = 0; n < count; ++n) {
      const std::int64_t o = done + n, inner = o % sizes[2], outer = o / sizes[2];
      rows[n] = static_cast<const std::uint8_t *>(call.blocks) + inner * strides[2] + outer % sizes[1] * strides[1] +
                outer / sizes[1] * strides[0];
    }
    char *panel = static_cast<char *>(call.panels) + place / kPanel * call.panel_step;
    pack_group<kFormat>(rows, count, lane, blocks, panel + place % kPanel / kHalf * half_bytes);
  }
}

}  // namespace

void pack_blocks_cpu(const PackBlocksCall &call) {
  with_format(call.format, [&](auto constant) { pack<decltype(constant)::value>(call); });
}

}  // namespace weft
