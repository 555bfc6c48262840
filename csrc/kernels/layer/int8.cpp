#include "kernels/layer/int8.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/floats.h"
#include "kernels/layer/int8_formats.h"
#include "kernels/layer/int8_rows.h"
#include "kernels/layer/tile_shapes.h"
#include "support/instruction_set.h"

// GCC takes what its intrinsics leave undefined on purpose for a mistake.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace weft {
namespace {

#define WEFT_UNROLL _Pragma("GCC unroll 16")

namespace plain {
#define WEFT_TARGET 0
// clang-format off
#include "kernels/layer/lanes.h"
#include "kernels/layer/int8_round.h"
#include "kernels/layer/int8_plain.h"
#include "kernels/layer/int8_kernels.h"
// clang-format on
#undef WEFT_TARGET
}  // namespace plain

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WEFT_HAS_TARGETS 1
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace avx2 {
#define WEFT_TARGET 256
// clang-format off
#include "kernels/layer/lanes.h"
#include "kernels/layer/int8_round.h"
#include "kernels/layer/int8_vectors_avx2.h"
#include "kernels/layer/int8_weights.h"
#include "kernels/layer/int8_products_avx2.h"
#include "kernels/layer/int8_tiles.h"
#include "kernels/layer/int8_kernels.h"
// clang-format on
#undef WEFT_TARGET
}  // namespace avx2
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c,prefer-vector-width=512")
namespace vnni {
#define WEFT_TARGET 512
// clang-format off
#include "kernels/layer/lanes.h"
#include "kernels/layer/int8_round.h"
#include "kernels/layer/int8_vectors_avx512.h"
#include "kernels/layer/int8_weights.h"
#include "kernels/layer/int8_products_avx512.h"
#include "kernels/layer/int8_tiles.h"
#include "kernels/layer/int8_kernels.h"
// clang-format on
#undef WEFT_TARGET
}  // namespace vnni
#pragma GCC pop_options
#if __GNUC__ >= 11
#define WEFT_HAS_AMX 1
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c,amx-tile,amx-int8,prefer-vector-width=512")
namespace amx {
using namespace vnni;
#include "kernels/layer/int8_amx.h"
}  // namespace amx
#pragma GCC pop_options
#endif
#endif

#if defined(WEFT_HAS_TARGETS)
// AMD's processors run vectors of 512 bits in two halves. There one row, or two with codes of 8 bits, take as long as
// reading the weights, which is faster with 256 bits, in formats whose codes are unpacked in few steps.
template <Format kFormat>
void times_few_or_more(const Rows &in, const void *panel, float *scratch, const Epilogue &out) {
  constexpr int kFew = half_layout(kFormat).bits == 8 ? 2 : 1;
  if (in.count <= kFew) return avx2::times_int8_panel<kFormat>(in, panel, scratch, out);
  vnni::times_int8_panel<kFormat>(in, panel, scratch, out);
}

template <Format... kFormats>
Int8Kernels with_few_rows_apart(Int8Kernels kernels) {
  ((kernels.by_format[static_cast<int>(kFormats)].times = times_few_or_more<kFormats>), ...);
  return kernels;
}
#endif

const Int8Kernels &best_kernels() {
#if defined(WEFT_HAS_AMX)
  if (has_vnni() && has_amx_int8()) return amx::kInt8Kernels;
#endif
#if defined(WEFT_HAS_TARGETS)
  static const Int8Kernels amd_kernels =
      with_few_rows_apart<Format::kQ4_0, Format::kQ4_1, Format::kQ8_0, Format::kQ4_K, Format::kInt4_32,
                          Format::kInt4_64, Format::kInt4_128, Format::kInt8_32, Format::kInt8_128>(vnni::kInt8Kernels);
  if (has_vnni() && has_fast_pairs()) return amd_kernels;
  if (has_vnni()) return vnni::kInt8Kernels;
  if (instruction_set() != InstructionSet::kPlain) return avx2::kInt8Kernels;
#endif
  return plain::kInt8Kernels;
}

}  // namespace

const Int8Kernels &int8_kernels() {
  static const Int8Kernels &best = best_kernels();
  return best;
}

}  // namespace weft
