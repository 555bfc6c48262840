#include "kernels/skinny_gemm.h"

#include <algorithm>
#include <cstring>

#include "support/kernel_threads.h"
#include "support/multiversion.h"

namespace weft {
namespace {

constexpr int kLanes = 16;
constexpr int kMostRows = 6;                           // at once: their sums and the weights fill AVX-512's registers
constexpr std::int64_t kProductsForThreads = 1 << 21;  // some 100 us of work

typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

// Writes or adds the first `valid` of 16 sums.
WEFT_INLINE void finish(const Lanes &sums, float *out, std::int64_t valid, bool add) {
  if (valid >= kLanes) {
    Lanes total = {};
    if (add) std::memcpy(&total, out, sizeof total);
    total += sums;
    std::memcpy(out, &total, sizeof total);
    return;
  }
  float values[kLanes];
  std::memcpy(values, &sums, sizeof values);
  for (std::int64_t n = 0; n < valid; ++n) out[n] = add ? out[n] + values[n] : values[n];
}

// kRows rows times the outputs of one panel, whose weights are read once and in their order: they come from far away.
template <int kRows>
WEFT_INLINE void tile(const FewRowsCall &call, std::int64_t row, std::int64_t panel) {
  constexpr int kVectors = kPanel / kLanes;
  const float *x = call.x + row * call.x_row;
  const float *w = call.panels + panel * call.inputs * kPanel;
  Lanes sums[kRows][kVectors] = {};
  for (std::int64_t i = 0; i < call.inputs; ++i, w += kPanel) {
    Lanes weights[kVectors];
    for (int v = 0; v < kVectors; ++v) weights[v] = reinterpret_cast<const Lanes *>(w)[v];
    for (int m = 0; m < kRows; ++m) {
      const float value = x[m * call.x_row + i];
      for (int v = 0; v < kVectors; ++v) sums[m][v] += value * weights[v];
    }
  }
  const std::int64_t output = panel * kPanel;
  for (int m = 0; m < kRows; ++m) {
    for (int v = 0; v < kVectors; ++v) {
      finish(sums[m][v], call.out + (row + m) * call.out_row + output + v * kLanes, call.outputs - output - v * kLanes,
             call.add);
    }
  }
}

template <int kRows>
WEFT_INLINE std::int64_t take(const FewRowsCall &call, std::int64_t row, std::int64_t panel) {
  tile<kRows>(call, row, panel);
  return row + kRows;
}

WEFT_INLINE void panel_product(const FewRowsCall &call, std::int64_t panel) {
  std::int64_t row = 0;
  while (call.rows - row >= kMostRows) row = take<kMostRows>(call, row, panel);
  switch (call.rows - row) {
    case 5:
      row = take<5>(call, row, panel);
      break;
    case 4:
      row = take<4>(call, row, panel);
      break;
    case 3:
      row = take<3>(call, row, panel);
      break;
    case 2:
      row = take<2>(call, row, panel);
      break;
    case 1:
      row = take<1>(call, row, panel);
      break;
    default:
      break;
  }
}

using Panels = void (*)(const FewRowsCall &call, std::int64_t begin, std::int64_t end);

void panels_plain(const FewRowsCall &call, std::int64_t begin, std::int64_t end) {
  for (std::int64_t panel = begin; panel < end; ++panel) panel_product(call, panel);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void panels_avx2(const FewRowsCall &call, std::int64_t begin, std::int64_t end) {
  for (std::int64_t panel = begin; panel < end; ++panel) panel_product(call, panel);
}
__attribute__((target("avx512f,avx512vl,avx512dq,fma,prefer-vector-width=512"))) void panels_avx512(
    const FewRowsCall &call, std::int64_t begin, std::int64_t end) {
  for (std::int64_t panel = begin; panel < end; ++panel) panel_product(call, panel);
}
#endif

Panels best_panels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("fma"))
    return panels_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return panels_avx2;
#endif
  return panels_plain;
}

}  // namespace

void few_rows_cpu(const FewRowsCall &call, int threads) {
  static const Panels panels = best_panels();
  const std::int64_t count = (call.outputs + kPanel - 1) / kPanel;
  if (call.rows * call.inputs * call.outputs < kProductsForThreads) threads = 1;
  for_rows(count, threads, [&](std::int64_t begin, std::int64_t end) { panels(call, begin, end); });
}

}  // namespace weft
