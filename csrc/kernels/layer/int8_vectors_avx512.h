// The vectors of int8_tiles.h in AVX-512: the functions that int8_vectors_avx2.h has, too. int8.cpp includes this in a
// namespace. So there is no include guard.

typedef __m512i Words;
constexpr int kTileInt8Rows = 8;
#define WEFT_UNROLL_VECTORS _Pragma("GCC unroll 2")

// The largest code of the kernels that a format shares with others: products of any codes have sums of 32 bits.
constexpr int shared_max_code(Format) { return 255; }

// Whether it pays that several tiles share a format's unpacked weights.
constexpr bool is_slow_to_unpack(Format format) { return half_layout(format).planes > 0; }

WEFT_INLINE Words words_at(const char *from) { return _mm512_loadu_si512(from); }
WEFT_INLINE Lanes floats_at(const float *from) { return _mm512_loadu_ps(from); }
WEFT_INLINE Words all_words(std::int32_t word) { return _mm512_set1_epi32(word); }
WEFT_INLINE Words all_bytes(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
// Keeps the compiler from loading a value again at each use, as part of another instruction.
WEFT_INLINE Words in_register(Words value) {
  asm("" : "+v"(value));
  return value;
}
WEFT_INLINE Lanes all_floats(float value) { return _mm512_set1_ps(value); }
WEFT_INLINE Lanes as_floats(Words bits) { return _mm512_castsi512_ps(bits); }
WEFT_INLINE Lanes converted(Words ints) { return _mm512_cvtepi32_ps(ints); }
WEFT_INLINE Lanes fused(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }
WEFT_INLINE Words low_bits(Words bytes) { return _mm512_and_si512(bytes, all_bytes(15)); }
WEFT_INLINE Words high_bits(Words bytes) { return low_bits(_mm512_srli_epi16(bytes, 4)); }
WEFT_INLINE Words pairs_times(Words a, Words b) { return _mm512_madd_epi16(a, b); }
WEFT_INLINE Words shifted_left(Words ints, int bits) { return _mm512_slli_epi32(ints, static_cast<unsigned>(bits)); }
WEFT_INLINE Words larger(Words a, Words b) { return _mm512_max_epi32(a, b); }
WEFT_INLINE Lanes nan_where_equal(Words a, Words b, Lanes other) {
  return _mm512_mask_blend_ps(_mm512_cmpeq_epi32_mask(a, b), other,
                              all_floats(std::numeric_limits<float>::quiet_NaN()));
}
WEFT_INLINE Lanes halves_at(const char *from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
}
WEFT_INLINE Words looked_up(const std::uint8_t *book, Words places) {
  const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i *>(book));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(sixteen), places);
}
// Adds `value` to the bytes whose bit of a plane is set.
WEFT_INLINE Words with_plane(Words bytes, const char *plane, int value) {
  return _mm512_mask_add_epi8(bytes, _cvtu64_mask64(read_as<std::uint64_t>(plane)), bytes, all_bytes(value));
}
