// The products of a decoder with its weights on the CPU, each with what comes before and after it: the norm of its
// input, bias, SiLU and residual. Activations are float32; weights are float32, or the 16 bits that a checkpoint has.
//
// Every output is one sum over the inputs in their order, each term fused. So a row's result depends neither on how
// many rows there are nor on the threads: a token has the same logits alone, in a batch, as one of several drafts and
// in a prompt. Weights of 16 bits are widened exactly: they give the bits of the same weights in float32.
//
// Where the processor has AMX, its tiles may multiply weights in bfloat16. They take activations as sums of two
// bfloat16, 17 bits, and numbers below 2^-126 as none. A row's result depends on that row alone there, too; its last
// bits are not those of other processors.
#pragma once

#include <cstdint>

#include "kernels/logits.h"

namespace weft {

constexpr std::int64_t kPanel = 64;  // outputs of a panel

// out[m, n] = sum_i in[m, i] w[i, n] + bias[n] + residual[m, n], where `in` is x, or with `norm`
// x / sqrt(mean(x^2) + eps) * norm. `panels` holds w as [ceil(outputs / kPanel), inputs, kPanel], anything after the
// last output, and when `tiled` as [ceil(outputs / kPanel), ceil(inputs / 32), kPanel / 16, 16 pairs of inputs, 16
// outputs, 2], zeros after the last input. With `swiglu` there are `outputs` gates and as many ups, in panels that take
// turns, and out = silu(gate) * up. `also` becomes what `out` is.
struct LinearCall {
  const float *x;
  const void *panels;
  DType dtype;            // of the panels
  const float *bias;      // or null; with `swiglu` of the gates, then of the ups
  const float *norm;      // or null
  const float *residual;  // or null; may be `out`; not with `swiglu`
  float *out;
  float *also;                                                                 // or null
  std::int64_t rows, inputs, outputs, x_row, residual_row, out_row, also_row;  // the last four: floats between rows
  float eps;
  bool swiglu;
  bool tiled;  // only bfloat16, where there are tiles
  int threads;
};

void linear_cpu(const LinearCall &call);

// Whether products can be done by tiles.
bool has_tiles();

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight, for `rows` rows of `width` floats.
struct NormCall {
  const float *x, *weight;
  float *out;
  std::int64_t rows, width, x_row, out_row;
  float eps;
};

void rms_norm_cpu(const NormCall &call);

}  // namespace weft
