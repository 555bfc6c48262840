#include "kernels/layer/gated_norm.h"

#include <cmath>

#include "kernels/layer/live.h"
#include "kernels/vector_exp.h"
#include "support/instruction_set.h"
#include "support/kernel_threads.h"

namespace weft {
namespace {

constexpr std::int64_t kParts = 16;  // of a sum of squares

WEFT_MULTIVERSION void norm_rows(const GatedNormCall &call, std::int64_t begin, std::int64_t end) {
  const std::int64_t size = call.size;
  for (std::int64_t r = begin; r < end; ++r) {
    for (std::int64_t h = 0; h < call.heads; ++h) {
      const float *x = call.x + r * call.x_row + h * size, *gate = call.gate + r * call.gate_row + h * size;
      float *out = call.out + (r * call.heads + h) * size;
      float sums[kParts] = {}, sum = 0;
      std::int64_t i = 0;
      for (; i + kParts <= size; i += kParts)
        for (std::int64_t n = 0; n < kParts; ++n) sums[n] += x[i + n] * x[i + n];
      for (std::int64_t n = 0; i + n < size; ++n) sums[n] += x[i + n] * x[i + n];
      for (const float part : sums) sum += part;
      const float factor = 1 / std::sqrt(sum / static_cast<float>(size) + call.eps);
      for (i = 0; i < size; ++i) out[i] = x[i] * factor * call.weight[i] * (gate[i] / (1 + vector_exp(-gate[i])));
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
