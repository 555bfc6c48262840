#include "kernels/layer/rows.h"

#include <algorithm>
#include <cstring>

#include "kernels/floats.h"
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

// Writes the embedding of row `r`'s token to `out`.
void embed_row(const EmbedCall &call, std::int64_t r, float *out) {
  const std::int64_t token = std::min(std::max<std::int64_t>(call.tokens[r], 0), call.vocab - 1),
                     at = token * call.width;
  if (call.dtype == DType::kFloat16)
    widen_halves(static_cast<const Half *>(call.weight) + at, out, call.width);
  else if (call.dtype == DType::kBFloat16)
    widen_bfloats(static_cast<const BFloat16 *>(call.weight) + at, out, call.width);
  else
    std::copy_n(static_cast<const float *>(call.weight) + at, call.width, out);
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
