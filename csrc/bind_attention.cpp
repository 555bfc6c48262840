// Attention for Python, as addresses and sizes: weft.ops checks tensors and passes their pointers.
#include <nanobind/nanobind.h>

#include "attention.h"
#include "bind.h"

namespace nb = nanobind;

namespace weft {

void bind_attention(nb::module_ &m) {
  m.def("paged_attention_cpu",
        [](std::uintptr_t q, std::uintptr_t out, std::uintptr_t cache, std::uintptr_t page_table,
           std::uintptr_t positions, std::int64_t rows, std::int64_t width, std::int64_t heads, std::int64_t kv_heads,
           std::int64_t head_dim, std::int64_t page_size, std::int64_t table_width, std::int64_t q_row,
           std::int64_t q_token, float scale) {
          paged_attention_cpu({reinterpret_cast<const float *>(q), reinterpret_cast<float *>(out),
                               reinterpret_cast<const float *>(cache), reinterpret_cast<const std::int32_t *>(page_table),
                               reinterpret_cast<const std::int64_t *>(positions), rows, width, heads, kv_heads, head_dim,
                               page_size, table_width, q_row, q_token, scale});
        });
}

}  // namespace weft
