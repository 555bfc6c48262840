// The rounding of input rows to int8 (int8_rows.h). int8.cpp includes this once for each instruction set
// (WEFT_TARGET), each time in another namespace. So there is no include guard.

// The sums of the first and of the last 16 codes of 32 numbers.
struct HalfSums {
  std::int32_t first, second;
};

#if WEFT_TARGET == 0

// Returns the largest bits of the absolute values of 32 numbers. These have the order of the numbers, then NaN.
WEFT_INLINE std::int32_t max_bits(const float *x) {
  std::int32_t max = 0;
  for (std::int64_t i = 0; i < kInt8Inputs; ++i)
    max = std::max(max, static_cast<std::int32_t>(float_bits(x[i]) & 0x7fffffffu));
  return max;
}

// Multiplies 32 numbers by `factor`, and writes them rounded to `codes`.
WEFT_INLINE HalfSums round_numbers(const float *x, float factor, char *codes) {
  std::int32_t sums[2] = {};
  for (std::int64_t i = 0; i < kInt8Inputs; ++i) {
    const long code = std::lrintf(x[i] * factor);
    codes[i] = static_cast<char>(code);
    sums[i / (kInt8Inputs / 2)] += static_cast<std::int32_t>(code);
  }
  return {sums[0], sums[1]};
}

#else

WEFT_INLINE __m256i absolute_bits(const float *x) {
  return _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(x)), _mm256_set1_epi32(0x7fffffff));
}

WEFT_INLINE std::int32_t max_bits(const float *x) {
  const __m256i eight = _mm256_max_epi32(_mm256_max_epi32(absolute_bits(x), absolute_bits(x + 8)),
                                         _mm256_max_epi32(absolute_bits(x + 16), absolute_bits(x + 24)));
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

WEFT_INLINE __m256i rounded(const float *x, __m256 factor) {
  return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), factor));
}

WEFT_INLINE HalfSums round_numbers(const float *x, float factor, char *to) {
  const __m256 all = _mm256_set1_ps(factor);
  const __m256i first = _mm256_packs_epi32(rounded(x, all), rounded(x + 8, all));
  const __m256i second = _mm256_packs_epi32(rounded(x + 16, all), rounded(x + 24, all));
  // The two packs interleave words of 4 codes.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i codes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), codes);
  const __m256i sums_of_2 = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
  const __m256i sums_of_4 = _mm256_madd_epi16(sums_of_2, _mm256_set1_epi16(1));
  const __m256i sums_of_8 = _mm256_add_epi32(sums_of_4, _mm256_shuffle_epi32(sums_of_4, 0xb1));
  const __m256i sums = _mm256_add_epi32(sums_of_8, _mm256_shuffle_epi32(sums_of_8, 0x4e));
  return {_mm_cvtsi128_si32(_mm256_castsi256_si128(sums)), _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1))};
}

#endif

// Rounds groups begin..end-1 of the rows to int8, and writes each group to its place in `to`.
void round_rows(const Rows &rows, std::int64_t begin, std::int64_t end, char *to) {
  constexpr std::int32_t kInfinityBits = 0x7f800000;
  const std::int64_t group = rows.group;
  for (std::int64_t row = begin * group; row < std::min(end * group, rows.count); ++row) {
    const float *x = rows.x + row * rows.stride;
    char *block = to + row / group * rows.group_bytes;
    for (std::int64_t left = rows.width; left > 0; left -= kInt8Inputs, x += kInt8Inputs) {
      float last[kInt8Inputs] = {};
      const float *from = x;
      if (left < kInt8Inputs) std::copy_n(x, left, last), from = last;
      const std::int32_t bits = max_bits(from);
      const float max = bits_float(static_cast<std::uint32_t>(bits));
      const std::int64_t r = row % group;
      char *const codes = block + int8_codes_at(r);
      float scale = 0;
      HalfSums sums{};
      if (max >= kInt8SmallestMax && bits < kInfinityBits) {
        scale = max / 127;
        sums = round_numbers(from, 127 / max, codes);
      } else {
        if (bits >= kInfinityBits) scale = std::numeric_limits<float>::quiet_NaN();
        std::memset(codes, 0, kInt8Inputs);
      }
      write_as(block + int8_scale_at(group, r), scale);
      write_as(block + int8_scaled_sum_at(group, r), scale * static_cast<float>(sums.first + sums.second));
      write_as(block + int8_minus_sums_at(group, r), static_cast<std::int16_t>(-sums.first));
      write_as(block + int8_minus_sums_at(group, r) + 2, static_cast<std::int16_t>(-sums.second));
      block += group * kInt8RowBytes;
    }
  }
}
