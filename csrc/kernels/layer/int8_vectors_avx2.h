// The vectors of int8_tiles.h in AVX2: the functions that int8_vectors_avx512.h has, too. int8.cpp includes this in a
// namespace. So there is no include guard.

typedef __m256i Words;
constexpr int kTileInt8Rows = 4;
#define WEFT_UNROLL_VECTORS _Pragma("GCC unroll 1")

// The largest code of the kernels that a format shares with others.
constexpr int shared_max_code(Format format) {
  const int max_code = int8_format(format).max_code;
  return max_code == 24 ? 31 : max_code;
}

constexpr bool is_slow_to_unpack(Format format) {
  return half_layout(format).planes > 0 || int8_format(format).book != nullptr;
}

WEFT_INLINE Words words_at(const char *from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)); }
WEFT_INLINE Lanes floats_at(const float *from) { return _mm256_loadu_ps(from); }
WEFT_INLINE Words all_words(std::int32_t word) { return _mm256_set1_epi32(word); }
WEFT_INLINE Words all_bytes(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
WEFT_INLINE Lanes all_floats(float value) { return _mm256_set1_ps(value); }
WEFT_INLINE Lanes as_floats(Words bits) { return _mm256_castsi256_ps(bits); }
WEFT_INLINE Lanes converted(Words ints) { return _mm256_cvtepi32_ps(ints); }
WEFT_INLINE Lanes fused(Lanes a, Lanes b, Lanes c) { return _mm256_fmadd_ps(a, b, c); }
WEFT_INLINE Words low_bits(Words bytes) { return _mm256_and_si256(bytes, all_bytes(15)); }
WEFT_INLINE Words high_bits(Words bytes) { return low_bits(_mm256_srli_epi16(bytes, 4)); }
WEFT_INLINE Words pairs_times(Words a, Words b) { return _mm256_madd_epi16(a, b); }
WEFT_INLINE Words shifted_left(Words ints, int bits) { return _mm256_slli_epi32(ints, bits); }
WEFT_INLINE Words larger(Words a, Words b) { return _mm256_max_epi32(a, b); }
WEFT_INLINE Lanes nan_where_equal(Words a, Words b, Lanes other) {
  return _mm256_or_ps(other, as_floats(_mm256_cmpeq_epi32(a, b)));
}
WEFT_INLINE Lanes halves_at(const char *from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
}
WEFT_INLINE Words looked_up(const std::uint8_t *book, Words places) {
  const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i *>(book));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(sixteen), places);
}
WEFT_INLINE Words with_plane(Words bytes, const char *plane, int value) {
  const Words spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const Words bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
  const Words repeated = _mm256_shuffle_epi8(all_words(read_as<std::int32_t>(plane)), spread);
  const Words is_set = _mm256_cmpeq_epi8(_mm256_and_si256(repeated, bit), bit);
  return _mm256_or_si256(bytes, _mm256_and_si256(is_set, all_bytes(value)));
}
