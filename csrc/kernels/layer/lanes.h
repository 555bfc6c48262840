// Vectors of floats, for the inner loops of products. This is included once for each instruction set (WEFT_TARGET),
// each time in another namespace, so there is no include guard.

// A vector has the size of one register, because the compiler keeps larger ones in memory.
#if WEFT_TARGET == 512
constexpr int kLanes = 16;
#elif WEFT_TARGET == 256
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

WEFT_INLINE Lanes load(const float *from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

WEFT_INLINE void store_epilogue(const Epilogue &epilogue, std::int64_t row, std::int64_t place, Lanes sums) {
  float *out = epilogue.out + row * epilogue.stride + place;
  const float *residual = epilogue.residual ? epilogue.residual + row * epilogue.residual_row + place : nullptr;
  const std::int64_t valid = epilogue.valid - place;
  if (valid >= kLanes) {
    if (epilogue.bias) sums += load(epilogue.bias + place);
    if (residual) sums += load(residual);
    std::memcpy(out, &sums, sizeof sums);
    return;
  }
  for (std::int64_t n = 0; n < valid; ++n) {
    const float value = epilogue.bias ? sums[n] + epilogue.bias[place + n] : sums[n];
    out[n] = residual ? value + residual[n] : value;
  }
}
