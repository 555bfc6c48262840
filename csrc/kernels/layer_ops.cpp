#include "kernels/layer_ops.h"

#include <cmath>
#include <cstring>

#include "kernels/vector_exp.h"
#include "support/multiversion.h"

namespace weft {

WEFT_MULTIVERSION void rms_norm_cpu(const float *x, const float *weight, float *out, std::int64_t rows,
                                    std::int64_t width, float eps) {
  for (std::int64_t r = 0; r < rows; ++r, x += width, out += width) {
    float squares = 0;
    for (std::int64_t i = 0; i < width; ++i) squares += x[i] * x[i];
    const float scale = 1 / std::sqrt(squares / static_cast<float>(width) + eps);
    for (std::int64_t i = 0; i < width; ++i) out[i] = x[i] * scale * weight[i];
  }
}

WEFT_MULTIVERSION void silu_mul_cpu(const float *gate_up, float *out, std::int64_t rows, std::int64_t inner) {
  for (std::int64_t r = 0; r < rows; ++r, gate_up += 2 * inner, out += inner)
    for (std::int64_t i = 0; i < inner; ++i) out[i] = gate_up[i] / (1 + vector_exp(-gate_up[i])) * gate_up[inner + i];
}

WEFT_MULTIVERSION void rotate_write_cpu(float *qkv, float *cache, const std::int64_t *slots, const float *rotary,
                                        std::int64_t rows, std::int64_t heads, std::int64_t kv_heads,
                                        std::int64_t head_dim) {
  const std::int64_t width = (heads + 2 * kv_heads) * head_dim, written = 2 * kv_heads * head_dim;
  for (std::int64_t r = 0; r < rows; ++r, qkv += width, rotary += head_dim) {
    for (std::int64_t h = 0; h < heads + kv_heads; ++h) {
      float *head = qkv + h * head_dim;
      for (std::int64_t d = 0; d < head_dim; d += 2) {
        const float a = head[d], b = head[d + 1], cos = rotary[d], sin = rotary[d + 1];
        head[d] = a * cos - b * sin;
        head[d + 1] = a * sin + b * cos;
      }
    }
    std::memcpy(cache + slots[r] * written, qkv + heads * head_dim, written * sizeof(float));
  }
}

}  // namespace weft
