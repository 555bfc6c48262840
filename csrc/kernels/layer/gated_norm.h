// The norm of each head of a recurrence's output, times a gate, on the CPU. A row's result depends on that row alone.
#pragma once

#include <cstdint>

namespace weft {

// out[r, h] = x[r, h] / sqrt(mean(x[r, h]^2) + eps) * weight * silu(gate[r, h]). x_row and gate_row are the floats
// between rows.
struct GatedNormCall {
  const float *x, *gate;  // [rows, heads, size]
  const float *weight;    // [size]
  float *out;             // [rows, heads, size]
  std::int64_t rows, heads, size, x_row, gate_row;
  float eps;
  int threads;
  const std::int64_t *live;  // or null: only the first *live rows are read and written
};

void gated_norm_cpu(const GatedNormCall &call);

}  // namespace weft
