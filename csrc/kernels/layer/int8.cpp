#include "kernels/layer/int8.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
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
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace weft {
namespace {

#define WEFT_UNROLL _Pragma("GCC unroll 16")

namespace plain {
#define WEFT_TARGET 0
// clang-format off
#include "kernels/layer/lanes.h"
#include "kernels/layer/int8_tiles.h"
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
#include "kernels/layer/int8_tiles.h"
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
#include "kernels/layer/int8_tiles.h"
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

const Int8Kernels &best_kernels() {
#if defined(WEFT_HAS_AMX)
  if (has_vnni() && has_amx_int8()) return amx::kInt8Kernels;
#endif
#if defined(WEFT_HAS_TARGETS)
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
