// Products of 32 inputs by AVX-512's VNNI, which multiplies codes without sign by codes with one and adds 4 products to
// an integer. int8.cpp includes this in a namespace. So there is no include guard.

// Returns the sum of the products of 32 inputs from those of 16 and their scales. The products with scales, and the
// sum, are below 2^24, so floats are exact.
WEFT_INLINE Lanes scaled_halves(Words first, Words second, const Int8Scale &scale) {
  return fused(converted(second), converted(scale.of_16[1]), converted(first) * converted(scale.of_16[0]));
}

// Adds the products of 32 inputs of kRows rows, from `row` on of the group `x`, to their sums.
template <class Weights, int kRows>
WEFT_INLINE void add_products(const Weights &weights, const char *x, std::int64_t group, std::int64_t row,
                              Lanes (&sums)[kInt8Vectors][kRows]) {
  constexpr bool kOf16 = Weights::kKind == Int8Kind::kOf16;
  // Two chains of additions: where the halves have scales, or where few rows would wait for one chain.
  constexpr int kChains = kOf16 || kRows < 4 ? 2 : 1;
  const char *codes = x + int8_codes_at(row), *minus_sums = x + int8_minus_sums_at(group, row);
  Int8Scale scales[kInt8Vectors];
  Words totals[kInt8Vectors][kRows][kChains];
  WEFT_UNROLL for (int v = 0; v < kInt8Vectors; ++v) {
    scales[v] = weights.scale(v);
    WEFT_UNROLL for (int m = 0; m < kRows; ++m) {
      const Words minus = word_of(minus_sums, m);
      Words *chains = totals[v][m];
      for (int k = 0; k < kChains; ++k) chains[k] = all_words(0);
      if constexpr (Weights::kKind == Int8Kind::kOffset) chains[0] = pairs_times(scales[v].offsets, minus);
      if constexpr (kOf16) {
        for (int k = 0; k < 2; ++k) chains[k] = pairs_times(all_words(kOffsetOf16 << 16 * k), minus);
      }
    }
  }
  WEFT_UNROLL for (int c = 0; c < 8; ++c) {
    Words words[kInt8Vectors];
    WEFT_UNROLL for (int v = 0; v < kInt8Vectors; ++v) words[v] = weights.codes(v, c);
    WEFT_UNROLL for (int m = 0; m < kRows; ++m) {
      // All vectors share one load: a load for each would take as long as their products.
      const Words inputs = in_register(word_of(codes + m * kInt8Inputs, c));
      WEFT_UNROLL for (int v = 0; v < kInt8Vectors; ++v) {
        Words &total = totals[v][m][c * kChains / 8];
        total = _mm512_dpbusd_epi32(total, words[v], inputs);
      }
    }
  }
  WEFT_UNROLL for (int v = 0; v < kInt8Vectors; ++v) WEFT_UNROLL for (int m = 0; m < kRows; ++m) {
    const Words *chains = totals[v][m];
    Lanes total;
    if constexpr (kOf16) {
      total = scaled_halves(chains[0], chains[1], scales[v]);
    } else {
      total = converted(kChains == 2 ? _mm512_add_epi32(chains[0], chains[kChains - 1]) : chains[0]);
    }
    add_scaled<Weights>(total, x, group, row + m, scales[v], sums[v][m]);
  }
}
