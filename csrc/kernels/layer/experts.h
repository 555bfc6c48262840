// A mixture of experts on the CPU: for each row, the weighted sum of the MLPs that a router chose for it. As in
// linear.h, activations are float32, weights are widened exactly, and a row's result depends on that row alone.
#pragma once

#include <cstdint>

#include "kernels/layer/linear.h"

namespace weft {

// out[n] = residual[n] + sum_j weights[n, j] (down[e] activation(up[e] x[n] + up_bias[e]) + down_bias[e]), with
// e = index[n, j] - first and j in order. An e outside [0, experts) adds nothing.
//
// The parts of `up` and `down` hold the panels of all experts one after another, each as in linear.h. With `gated`,
// `up` has gates and ups, and up_bias the gates', then the ups'. The panels of experts without rows are not read.
struct ExpertsCall {
  const float *x;             // [rows, hidden], x_row floats between rows
  const std::int64_t *index;  // [rows, chosen]
  const float *weights;       // [rows, chosen]
  const float *residual;      // [rows, hidden], residual_row floats between rows, or null; may be `out`
  float *out;                 // [rows, hidden], out_row floats between rows
  Part up[2], down;
  int num_ups;                       // parts of `up`
  const float *up_bias, *down_bias;  // or null
  bool gated;
  Activation activation;
  std::int64_t rows, hidden, inner, experts, chosen, x_row, residual_row, out_row;
  std::int64_t first;  // the index of the first expert
  int threads;
  const std::int64_t *live;  // or null: only the first *live rows are read and written
};

void experts_cpu(const ExpertsCall &call);

}  // namespace weft
