// A [rows, vocab] tensor of logits as a kernel argument, and its dtypes.
#pragma once

#include <cstdint>

namespace weft {

enum class DType : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

// The last dimension is contiguous; `stride` is the distance between rows in elements.
struct Logits {
  void *data;
  DType dtype;
  std::int64_t rows, vocab, stride;
};

// Bit patterns of minus infinity.
constexpr std::uint32_t kNegInf32 = 0xff800000u;
constexpr std::uint16_t kNegInfHalf = 0xfc00u;
constexpr std::uint16_t kNegInfBFloat16 = 0xff80u;

}  // namespace weft
