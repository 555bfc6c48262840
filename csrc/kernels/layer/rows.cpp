#include "kernels/layer/rows.h"

#include <algorithm>
#include <cstring>

#include "kernels/floats.h"
#include "kernels/layer/blocks.h"
#include "kernels/layer/linear.h"
#include "kernels/layer/live.h"
#include "support/instruction_set.h"

namespace weft {
namespace {

WEFT_MULTIVERSION void widen_halves(const Half *from, float *to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = widen(from[i]);
}

WEFT_MULTIVERSION void widen_bfloats(const BFloat16 *from, float *to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = widen(from[i]);
}

// Output `token` of a linear layer's panels: its weights are kPanel elements apart.
template <class W>
void read_panels(const W *panels, std::int64_t token, float *out, std::int64_t width) {
  const W *from = panels + token / kPanel * width * kPanel + token % kPanel;
  for (std::int64_t i = 0; i < width; ++i) out[i] = widen(from[i * kPanel]);
}

// The same for tiles, which hold a pair of weights for each of 16 outputs after the other.
void read_tiles(const BFloat16 *tiles, std::int64_t token, float *out, std::int64_t width) {
  constexpr std::int64_t kInputs = 32, kOutputs = 16, kBlock = kInputs * kPanel, kTile = kInputs * kOutputs;
  const std::int64_t blocks = (width + kInputs - 1) / kInputs, lane = token % kPanel;
  const BFloat16 *from = tiles + token / kPanel * blocks * kBlock + lane / kOutputs * kTile + lane % kOutputs * 2;
  for (; width > 0; from += kBlock, out += kInputs, width -= kInputs) {
    if (width < kInputs) {
      for (std::int64_t i = 0; i < width; ++i) out[i] = widen(from[i / 2 * 2 * kOutputs + i % 2]);
    } else {
      for (std::int64_t i = 0; i < kInputs; i += 2)
        out[i] = widen(from[i * kOutputs]), out[i + 1] = widen(from[i * kOutputs + 1]);
    }
  }
}

// Writes the embedding of row `r`'s token to `out`.
void embed_row(const EmbedCall &call, std::int64_t r, float *out) {
  const std::int64_t token = std::min(std::max<std::int64_t>(call.tokens[r], 0), call.vocab - 1),
                     at = token * call.width;
  const bool is_packed = call.layout != EmbedLayout::kRows;
  if (is_quantized(call.format) && is_packed)
    widen_output(call.format, call.weight, token, call.width, out);
  else if (is_quantized(call.format))
    widen_row(call.format, static_cast<const char *>(call.weight) + token * row_bytes(call.format, call.width),
              call.width, out);
  else if (call.layout == EmbedLayout::kTiles)
    read_tiles(static_cast<const BFloat16 *>(call.weight), token, out, call.width);
  else if (call.format == Format::kFloat16 && is_packed)
    read_panels(static_cast<const Half *>(call.weight), token, out, call.width);
  else if (call.format == Format::kFloat16)
    widen_halves(static_cast<const Half *>(call.weight) + at, out, call.width);
  else if (call.format == Format::kBFloat16 && is_packed)
    read_panels(static_cast<const BFloat16 *>(call.weight), token, out, call.width);
  else if (call.format == Format::kBFloat16)
    widen_bfloats(static_cast<const BFloat16 *>(call.weight) + at, out, call.width);
  else if (is_packed)
    read_panels(static_cast<const float *>(call.weight), token, out, call.width);
  else
    std::copy_n(static_cast<const float *>(call.weight) + at, call.width, out);
  if (call.scale == 1) return;
  for (std::int64_t i = 0; i < call.width; ++i) out[i] *= call.scale;
}

}  // namespace

void embed_cpu(const EmbedCall &call) {
  const std::int64_t rows = live_rows(call.rows, call.live);
  for (std::int64_t r = 0; r < rows; ++r) embed_row(call, r, call.out + r * call.width);
}

void join_norms_cpu(const JoinCall &call) {
  const EmbedCall &embed = call.embed;
  const std::int64_t rows = live_rows(embed.rows, embed.live), width = embed.width, both = 2 * width;
  for (std::int64_t r = 0; r < rows; ++r) embed_row(embed, r, embed.out + r * both);
  rms_norm_cpu({embed.out, call.embed_norm, embed.out, rows, width, both, both, call.embed_eps});
  rms_norm_cpu({call.hidden, call.hidden_norm, embed.out + width, rows, width, call.hidden_row, both, call.hidden_eps});
}

void take_rows_cpu(const TakeCall &call) {
  const std::int64_t rows = live_rows(call.rows, call.live);
  for (std::int64_t b = 0; b < rows; ++b) {
    const std::int64_t t = std::min(std::max<std::int64_t>(call.index[b], 0), call.width - 1);
    std::copy_n(call.x + (b * call.width + t) * call.size, call.size, call.out + b * call.size);
  }
}

void copy_cpu(const StridedCopy &call) {
  const std::int64_t *sizes = call.sizes, *to = call.to_strides, *from = call.from_strides;
  const std::int64_t rows = live_rows(sizes[2], call.live);
  const bool in_rows = to[3] == call.element && from[3] == call.element;
  for (std::int64_t i = 0; i < sizes[0]; ++i) {
    for (std::int64_t j = 0; j < sizes[1]; ++j) {
      for (std::int64_t k = 0; k < rows; ++k) {
        char *out = static_cast<char *>(call.to) + i * to[0] + j * to[1] + k * to[2];
        const char *in = static_cast<const char *>(call.from) + i * from[0] + j * from[1] + k * from[2];
        if (in_rows) {
          std::memmove(out, in, static_cast<std::size_t>(sizes[3] * call.element));
          continue;
        }
        for (std::int64_t l = 0; l < sizes[3]; ++l, out += to[3], in += from[3])
          std::memcpy(out, in, static_cast<std::size_t>(call.element));
      }
    }
  }
}

}  // namespace weft
