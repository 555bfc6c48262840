// The small operations of a decoder layer on rows of float32, on the CPU: each one pass over memory.
#pragma once

#include <cstdint>

namespace weft {

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight, for rows of `width` contiguous floats.
void rms_norm_cpu(const float *x, const float *weight, float *out, std::int64_t rows, std::int64_t width, float eps);

// out[r] = silu(gate) * up, for rows of `inner` gates and then `inner` ups.
void silu_mul_cpu(const float *gate_up, float *out, std::int64_t rows, std::int64_t inner);

// Rotates neighbouring pairs of the first `heads + kv_heads` heads of each row of qkv [rows, heads + 2 kv_heads,
// head_dim] by rotary [rows, head_dim / 2, 2] (cos, sin), then copies keys and values to cache[slots[row]].
void rotate_write_cpu(float *qkv, float *cache, const std::int64_t *slots, const float *rotary, std::int64_t rows,
                      std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim);

}  // namespace weft
