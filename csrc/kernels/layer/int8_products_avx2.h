// Products of 32 inputs by AVX2, which adds 2 products in 16 bits. Some words' sums fit these bits; then they become
// integers of 32 bits. int8.cpp includes this in a namespace. So there is no include guard.

// Pairs of the low 16 bits of words.
WEFT_INLINE Words word_pairs(Words first, Words second) {
  return _mm256_blend_epi16(first, shifted_left(second, 16), 0xaa);
}

template <class Weights, int kRows>
WEFT_INLINE void sum_codes(const Weights &weights, int v, const Int8Scale &scale, const char *x, const char *minus_sums,
                           Lanes *sums) {
  constexpr bool kOf16 = Weights::kKind == Int8Kind::kOf16;
  const Words one = _mm256_set1_epi16(1);
  Words totals[kRows];
  if constexpr (Weights::kMaxCode == 255) {
    // The products of codes without sign would not fit 16 bits, so the sign of a weight goes to the input.
    WEFT_UNROLL for (int m = 0; m < kRows; ++m) totals[m] = all_words(0);
    WEFT_UNROLL for (int c = 0; c < 8; ++c) {
      const Words codes = _mm256_xor_si256(weights.codes(v, c), all_bytes(0x80));
      const Words absolute = _mm256_abs_epi8(codes);
      WEFT_UNROLL for (int m = 0; m < kRows; ++m) {
        const Words inputs = _mm256_sign_epi8(word_of(x + m * kInt8Inputs, c), codes);
        totals[m] = _mm256_add_epi32(totals[m], pairs_times(_mm256_maddubs_epi16(absolute, inputs), one));
      }
    }
  } else {
    // So many words have sums below 2^15.
    constexpr int kFit = 32767 / (2 * 127 * Weights::kMaxCode), kWords = kFit >= 8 ? 8 : kFit >= 4 ? 4 : 2;
    Words factors[2] = {one, one}, offsets = scale.offsets;
    if constexpr (kOf16) {
      for (int k = 0; k < 2; ++k) factors[k] = word_pairs(scale.of_16[k], scale.of_16[k]);
      offsets = _mm256_slli_epi16(word_pairs(scale.of_16[0], scale.of_16[1]), 5);
      static_assert(kOffsetOf16 == 1 << 5);
    }
    WEFT_UNROLL for (int m = 0; m < kRows; ++m) totals[m] =
        Weights::kKind != Int8Kind::kMins ? pairs_times(offsets, word_of(minus_sums, m)) : all_words(0);
    WEFT_UNROLL for (int begin = 0; begin < 8; begin += kWords) {
      Words pairs[kRows];
      WEFT_UNROLL for (int c = begin; c < begin + kWords; ++c) {
        const Words codes = weights.codes(v, c);
        WEFT_UNROLL for (int m = 0; m < kRows; ++m) {
          const Words products = _mm256_maddubs_epi16(codes, word_of(x + m * kInt8Inputs, c));
          pairs[m] = c == begin ? products : _mm256_add_epi16(pairs[m], products);
        }
      }
      WEFT_UNROLL for (int m = 0; m < kRows; ++m) totals[m] =
          _mm256_add_epi32(totals[m], pairs_times(pairs[m], factors[begin / 4]));
    }
  }
  WEFT_UNROLL for (int m = 0; m < kRows; ++m) sums[m] = converted(totals[m]);
}

// Adds the products of 32 inputs of kRows rows, from `row` on of the group `x`, to their sums.
template <class Weights, int kRows>
WEFT_INLINE void add_products(const Weights &weights, const char *x, std::int64_t group, std::int64_t row,
                              Lanes (&sums)[kInt8Vectors][kRows]) {
  WEFT_UNROLL_VECTORS for (int v = 0; v < kInt8Vectors; ++v) {
    const Int8Scale scale = weights.scale(v);
    Lanes totals[kRows];
    sum_codes<Weights, kRows>(weights, v, scale, x + int8_codes_at(row), x + int8_minus_sums_at(group, row), totals);
    WEFT_UNROLL for (int m = 0; m < kRows; ++m) add_scaled<Weights>(totals[m], x, group, row + m, scale, sums[v][m]);
  }
}
