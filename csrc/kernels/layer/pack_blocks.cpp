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

// Transposes 8 words of 8 halves of bytes.
void transpose_halves(std::uint32_t *words) {
  constexpr std::uint32_t kMasks[3] = {0x0f0f0f0f, 0x00ff00ff, 0x0000ffff};
  for (int step = 0; step < 3; ++step) {
    const int distance = 1 << step, shift = 4 << step;
    for (int i = 0; i < 8; ++i) {
      if (i & distance) continue;
      const std::uint32_t swapped = (words[i] >> shift ^ words[i + distance]) & kMasks[step];
      words[i + distance] ^= swapped, words[i] ^= swapped << shift;
    }
  }
}

// Packs all blocks of `count` outputs from `lane` on, which are in one group of a half.
template <Format kFormat>
void pack_group(const std::uint8_t *const *rows, std::int64_t count, std::int64_t lane, std::int64_t blocks,
                char *half) {
  constexpr Block kBlock = block_of(kFormat);
  constexpr int kPlanes = half_layout(kFormat).planes, kSubs = static_cast<int>(kBlock.inputs / kSub);
  for (std::int64_t b = 0; b < blocks; ++b, half += kBlock.half_bytes) {
    std::uint32_t high[std::max(kPlanes, 1)][kSubs][kGroup] = {};
    BlockCodes codes;
    for (std::int64_t n = 0; n < count; ++n) {
      read_block<kFormat>(rows[n] + b * kBlock.bytes, codes);
      write_output<kFormat>(codes, lane + n, half);
      for (int plane = 0; plane < kPlanes; ++plane) {
        for (int s = 0; s < kSubs; ++s) high[plane][s][(lane + n) % kGroup] = codes.high[plane][s];
      }
    }
    for (int plane = 0; plane < kPlanes; ++plane) {
      for (int s = 0; s < kSubs; ++s) {
        std::uint32_t *const first = high[plane][s], *const second = first + kGroup / 2;
        transpose_halves(first), transpose_halves(second);
        auto *to = reinterpret_cast<std::uint64_t *>(half + plane_at(kFormat, s, lane, plane));
        for (int w = 0; w < 8; ++w) {
          const std::uint64_t word = first[w] | std::uint64_t{second[w]} << 32;
          if (count == kGroup)
            to[w] = word;
          else  // another thread may write the other outputs of the group
            __atomic_fetch_or(to + w, word, __ATOMIC_RELAXED);
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
