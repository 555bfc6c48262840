// Linear layers of a decoder on the CPU, each fused with the norm of its input and an epilogue of bias, activation,
// scale, softcap and residual. Activations are float32; weights have one of the formats in formats.h.
//
// Every output is one sum over the inputs in order, by fused multiply-adds if the instruction set has them. So a row's
// result depends neither on the other rows nor on the threads: a token gets the same logits alone, in a batch, among
// drafts and in a prompt. Weights of 16 bits are widened exactly, and give the same bits as those weights in float32.
//
// bfloat16 weights may be multiplied by input rows that are rounded to bfloat16, or split into two bfloat16 parts (17
// bits), by AMX, by AVX-512's pairs of bfloat16, or without either. A row's result still depends on that row alone. AMX
// adds in another order than the others, so its last bits differ from theirs, and where such instructions multiply,
// numbers below 2^-126 count as 0.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/layer/formats.h"
#include "kernels/logits.h"

namespace weft {

// The numbers of functions in ops/activation.py. kSilu is x sigmoid(slope x), kReluSquared is max(x, 0)^2.
enum class Function : int { kNone = 0, kSilu = 1, kGelu = 2, kGeluTanh = 3, kRelu = 4, kReluSquared = 5 };

// Without gates, out = function(sum). With gates, out = function(min(gate, limit)) * (up clamped to +-limit + shift).
struct Activation {
  Function function = Function::kNone;
  float slope = 1, limit = std::numeric_limits<float>::infinity(), shift = 0;
};

// The weights of `outputs` outputs: panels of kPanel outputs, with any padding after the last. Panels of a dense format
// are [inputs, kPanel]; those for bfloat16 activations are [ceil(inputs / 32), kPanel / 16, 16 pairs of inputs, 16
// outputs, 2], with zeros after the last input. Quantised panels are described in formats.h. Rows are rounded by
// `activations` before they are multiplied by these weights.
struct Part {
  const void *panels;
  Format format;
  Activations activations;
  std::int64_t outputs;
  const std::int32_t *order = nullptr;  // [inputs]; weight i is that of input order[i]. Null: of input i
};
constexpr int kMaxParts = 4;

// out[m, n] = cap(scale * activation(sum_i in[m, i] w[i, n] + bias[n])) + residual[m, n], where cap(y) is
// softcap * tanh(y / softcap) if softcap > 0, else y.
// Without `norm`, `in` is x. With `norm`, `in` is x / sqrt(mean(x^2) + eps) * norm.
// If `also` is not null, `out` is copied to it. With `live`, only the first *live rows are read and written.
//
// The weights w are in parts, one below the other, which may have different formats, activations and orders. The sums
// of a part are those of a call with this part alone. With `gated`, w has `outputs` gates and then `outputs` ups: in
// one part, whose panels are gates and ups by turns, or in two.
struct LinearCall {
  const float *x;
  Part parts[kMaxParts];
  int num_parts;
  const float *bias;      // or null; with `gated` of the gates, then of the ups
  const float *norm;      // or null
  const float *residual;  // or null; may be `out`
  float *out;
  float *also;                                                                 // or null
  std::int64_t rows, inputs, outputs, x_row, residual_row, out_row, also_row;  // the last four: floats between rows
  float eps;
  bool gated;
  Activation activation;
  float scale = 1, softcap = 0;
  int threads;
  const std::int64_t *live;  // or null
};

void linear_cpu(const LinearCall &call);

// Whether this build, the processor and the chosen instruction set can multiply weights of `format` by `activations`.
bool can_multiply(Format format, Activations activations);

// Whether products with activations and weights in bfloat16 take less time than those with activations in float32.
bool has_fast_bfloat16();

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight, plus added[r] if `added` is not null, for `rows` rows of `width`
// floats, or with `live` the first *live rows.
struct NormCall {
  const float *x, *weight;
  float *out;
  std::int64_t rows, width, x_row, out_row;
  float eps;
  const std::int64_t *live = nullptr;
  const float *added = nullptr;  // may be `out`
  std::int64_t added_row = 0;
};

void rms_norm_cpu(const NormCall &call, int threads = 1);

}  // namespace weft
