// Hashes of mask rows for Python. A replay compares them with those in a recording.
#include <nanobind/nanobind.h>

#include <cstdint>

#include "bindings/arrays.h"
#include "bindings/bind.h"
#include "support/row_hash.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace weft {
namespace {

void hash_mask_rows(HostArray<const std::int32_t, 2> masks, HostArray<const std::int32_t, 1> flags,
                    HostArray<const std::int32_t, 1> rows, int vocab_size, HostArray<std::int64_t, 1> hashes) {
  const auto words = static_cast<int>(masks.shape(1));
  if (vocab_size < 1 || words != (vocab_size + 31) / 32 || flags.shape(0) != masks.shape(0) ||
      hashes.shape(0) != rows.shape(0))
    throw nb::value_error("masks [R, W], flags [R], rows [N], hashes [N] and the vocabulary do not fit together");
  const std::uint32_t last_word_bits = vocab_size % 32 ? (1u << (vocab_size % 32)) - 1 : ~0u;
  for (std::size_t i = 0; i < rows.shape(0); ++i) {
    const std::int32_t row = rows(i);
    if (row < 0 || static_cast<std::size_t>(row) >= masks.shape(0)) throw nb::index_error("there is no such mask row");
    const std::int32_t *mask = masks.data() + static_cast<std::size_t>(row) * masks.shape(1);
    hashes(i) = static_cast<std::int64_t>(hash_row(mask, words, last_word_bits, flags(row)));
  }
}

}  // namespace

void bind_recording(nb::module_ &m) {
  m.def("hash_mask_rows", &hash_mask_rows, "masks"_a.noconvert(), "flags"_a.noconvert(), "rows"_a.noconvert(),
        "vocab_size"_a, "hashes"_a.noconvert(), nb::call_guard<nb::gil_scoped_release>(),
        "Hash rows of masks int32 [R, W] with their flags int32 [R]: of rows int32 [N] to hashes int64 [N].");
}

}  // namespace weft
