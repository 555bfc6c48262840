// A matrix product of few rows on the CPU, in float32: what a decode step multiplies.
//
// Every output is one sum over the inputs in their order, each term fused. So a row's result depends neither on how
// many rows there are nor on the threads: a token has the same logits alone, in a batch, and as one of several drafts.
#pragma once

#include <cstdint>

namespace weft {

constexpr std::int64_t kPanel = 64;  // outputs of a panel

// out[m, n] = sum_i x[m, i] w[i, n], or is added to with `add`. `panels` holds w as [ceil(outputs / kPanel), inputs,
// kPanel], zeros after the last output, aligned to 64 bytes; `x_row` and `out_row` are the floats between rows.
struct FewRowsCall {
  const float *x;
  const float *panels;
  float *out;
  std::int64_t rows, inputs, outputs, x_row, out_row;
  bool add;
};

void few_rows_cpu(const FewRowsCall &call, int threads);

}  // namespace weft
