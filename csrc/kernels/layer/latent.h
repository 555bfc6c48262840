// Multi-head latent attention on the CPU, in its absorbed form: products of each head's part of a row with the head's
// matrix, before attention and after it. As in linear.h, activations are float32, weights are widened exactly, and a
// row's result depends on that row alone.
#pragma once

#include <cstdint>

#include "kernels/layer/linear.h"

namespace weft {

// out[n, h] = w[h] x[n, h] for each head. `panels` holds the heads' panels one after another, each as in linear.h.
struct HeadsCall {
  const float *x;  // heads of `inputs` floats, x_head floats apart
  const void *panels;
  Format format;
  Activations activations;
  float *out;  // heads of `outputs` floats, out_head floats apart
  std::int64_t rows, heads, inputs, outputs, x_row, x_head, out_row, out_head;
  int threads;
  const std::int64_t *live;  // or null: only the first *live rows are read and written
};

void multiply_heads_cpu(const HeadsCall &call);

// Queries and a key for attention that rotates the last `rotated` floats of each, and takes the first ones of the key
// as the value. A head of x is inputs + rotated floats, and one of out is outputs + rotated: the product, then a copy
// of the last `rotated` floats. After the heads, a row of out has the key: the latent [outputs], normalised, and a copy
// of the `rotated` floats after it.
//
// The product `up` makes the heads of x from compressed queries, unless it has no parts.
struct LatentCall {
  HeadsCall queries;    // x_head and out_head are not used, nor are x and x_row with `up`
  LinearCall up;        // out, rows and live are not used
  const float *latent;  // [rows, outputs + rotated], latent_row floats between rows
  std::int64_t latent_row, rotated;
  const float *norm;  // [outputs]
  float eps;
};

void latent_queries_cpu(const LatentCall &call);

}  // namespace weft
