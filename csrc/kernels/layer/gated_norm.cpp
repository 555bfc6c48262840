#include "kernels/layer/gated_norm.h"

#include <cmath>

#include "kernels/layer/live.h"
#include "kernels/squares.h"
#include "kernels/vector_exp.h"
#include "support/instruction_set.h"
#include "support/kernel_threads.h"

namespace weft {
namespace {

WEFT_MULTIVERSION void norm_rows(const GatedNormCall &call, std::int64_t begin, std::int64_t end) {
  const std::int64_t size = call.size;
  for (std::int64_t r = begin; r < end; ++r) {
    for (std::int64_t h = 0; h < call.heads; ++h) {
      const float *x = call.x + r * call.x_row + h * size, *gate = call.gate + r * call.gate_row + h * size;
      float *out = call.out + (r * call.heads + h) * size;
      const float factor = 1 / std::sqrt(sum_of_squares(x, size) / static_cast<float>(size) + call.eps);
      for (std::int64_t i = 0; i < size; ++i) out[i] = x[i] * factor * call.weight[i] * times_sigmoid(gate[i], gate[i]);
    }
  }
}

}  // namespace

void gated_norm_cpu(const GatedNormCall &call) {
  const std::int64_t cost = 20 * call.heads * call.size;
  for_rows(live_rows(call.rows, call.live), call.threads, cost,
           [&](std::int64_t begin, std::int64_t end) { norm_rows(call, begin, end); });
}

}  // namespace weft
