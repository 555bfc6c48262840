// Attention and a layer's small operations for Python, as addresses and sizes: weft.ops checks tensors and passes their
// pointers.
#include "kernels/attention.h"

#include <nanobind/nanobind.h>

#include "bindings/bind.h"
#include "kernels/layer_ops.h"
#include "kernels/skinny_gemm.h"

namespace nb = nanobind;

namespace weft {

void bind_attention(nb::module_ &m) {
  m.def(
      "paged_attention_cpu",
      [](std::uintptr_t q, std::uintptr_t out, std::uintptr_t cache, std::uintptr_t page_table,
         std::uintptr_t positions, std::int64_t rows, std::int64_t width, std::int64_t heads, std::int64_t kv_heads,
         std::int64_t head_dim, std::int64_t page_size, std::int64_t table_width, std::int64_t q_row,
         std::int64_t q_token, float scale, int threads) {
        paged_attention_cpu(
            {reinterpret_cast<const float *>(q), reinterpret_cast<float *>(out), reinterpret_cast<const float *>(cache),
             reinterpret_cast<const std::int32_t *>(page_table), reinterpret_cast<const std::int64_t *>(positions),
             rows, width, heads, kv_heads, head_dim, page_size, table_width, q_row, q_token, scale},
            threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def("kv_plan_cpu", [](std::uintptr_t page_table, std::uintptr_t positions, std::uintptr_t table,
                          std::uintptr_t slots, std::uintptr_t rotary, std::int64_t rows, std::int64_t width,
                          std::int64_t page_size, std::int64_t table_width, std::int64_t table_rows,
                          std::int64_t turn) {
    kv_plan_cpu({reinterpret_cast<const std::int32_t *>(page_table), reinterpret_cast<const std::int64_t *>(positions),
                 reinterpret_cast<const float *>(table), reinterpret_cast<std::int64_t *>(slots),
                 reinterpret_cast<float *>(rotary), rows, width, page_size, table_width, table_rows, turn});
  });
  m.def("rms_norm_cpu", [](std::uintptr_t x, std::uintptr_t weight, std::uintptr_t out, std::int64_t rows,
                           std::int64_t width, float eps) {
    rms_norm_cpu(reinterpret_cast<const float *>(x), reinterpret_cast<const float *>(weight),
                 reinterpret_cast<float *>(out), rows, width, eps);
  });
  m.def("silu_mul_cpu", [](std::uintptr_t gate_up, std::uintptr_t out, std::int64_t rows, std::int64_t inner) {
    silu_mul_cpu(reinterpret_cast<const float *>(gate_up), reinterpret_cast<float *>(out), rows, inner);
  });
  m.def(
      "few_rows_cpu",
      [](std::uintptr_t x, std::uintptr_t panels, std::uintptr_t out, std::int64_t rows, std::int64_t inputs,
         std::int64_t outputs, std::int64_t x_row, std::int64_t out_row, bool add, int threads) {
        few_rows_cpu({reinterpret_cast<const float *>(x), reinterpret_cast<const float *>(panels),
                      reinterpret_cast<float *>(out), rows, inputs, outputs, x_row, out_row, add},
                     threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def("rotate_write_cpu", [](std::uintptr_t qkv, std::uintptr_t cache, std::uintptr_t slots, std::uintptr_t rotary,
                               std::int64_t rows, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim) {
    rotate_write_cpu(reinterpret_cast<float *>(qkv), reinterpret_cast<float *>(cache),
                     reinterpret_cast<const std::int64_t *>(slots), reinterpret_cast<const float *>(rotary), rows,
                     heads, kv_heads, head_dim);
  });
}

}  // namespace weft
