// Vectors of floats and of integers, for the inner loops of products. This is included once for each instruction set
// (WEFT_TARGET), each time in another namespace, so there is no include guard.

// A vector has the size of one register, because the compiler keeps larger ones in memory.
#if WEFT_TARGET == 512
constexpr int kLanes = 16;
#elif WEFT_TARGET == 256
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));
typedef std::int32_t Ints __attribute__((vector_size(kLanes * sizeof(std::int32_t))));

WEFT_INLINE Lanes load(const float *from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

// Returns kLanes numbers of 8 bits. GCC would convert them one by one.
template <class T>
WEFT_INLINE Ints load_bytes(const char *from) {
  constexpr bool kSigned = std::is_signed_v<T>;
#if WEFT_TARGET == 512
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
  return (Ints)(kSigned ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
#elif WEFT_TARGET == 256
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(from));
  return (Ints)(kSigned ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
#else
  Ints ints;
  for (int k = 0; k < kLanes; ++k)
    ints[k] = kSigned ? static_cast<std::int8_t>(from[k]) : static_cast<std::uint8_t>(from[k]);
  return ints;
#endif
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
