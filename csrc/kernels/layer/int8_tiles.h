// Products of quantised weights with int8 rows. linear.cpp includes this once for each instruction set (WEFT_TARGET:
// 512 has VNNI), each time in another namespace. So there is no include guard.
//
// For each 32 inputs, sums of codes are exact integers. Then a product adds float32 numbers in the order of inputs:
//
//   sum = fma(float(integer) * row's scale, scale, sum)       and with mins:  sum = fma(min, row's scaled sum, sum)
//
// So all instruction sets give the same bits, for any number of rows.

#define WEFT_UNROLL _Pragma("GCC unroll 16")

template <class T>
WEFT_INLINE T number_at(const char *from) {
  T number;
  std::memcpy(&number, from, sizeof number);
  return number;
}

template <class T>
WEFT_INLINE void put_at(char *to, T number) {
  std::memcpy(to, &number, sizeof number);
}

// ---- rows ----------------------------------------------------------------------------------------------------------

#if WEFT_TARGET == 0

// Returns the largest bits of the absolute values of 32 numbers. These have the order of the numbers, then NaN.
WEFT_INLINE std::int32_t max_bits(const float *x) {
  std::int32_t max = 0;
  for (std::int64_t i = 0; i < kInt8Inputs; ++i)
    max = std::max(max, static_cast<std::int32_t>(float_bits(x[i]) & 0x7fffffffu));
  return max;
}

// Multiplies 32 numbers by `factor` and rounds them.
WEFT_INLINE void round_numbers(const float *x, float factor, std::int8_t *codes) {
  for (std::int64_t i = 0; i < kInt8Inputs; ++i) codes[i] = static_cast<std::int8_t>(std::lrintf(x[i] * factor));
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

WEFT_INLINE void round_numbers(const float *x, float factor, std::int8_t *codes) {
  const __m256 all = _mm256_set1_ps(factor);
  const __m256i first = _mm256_packs_epi32(rounded(x, all), rounded(x + 8, all));
  const __m256i second = _mm256_packs_epi32(rounded(x + 16, all), rounded(x + 24, all));
  // The two packs interleave words of 4 codes.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(codes),
                      _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order));
}

#endif

// Rounds groups begin..end-1 of the rows to int8, and writes each group to its place in `to`.
void round_rows(const Rows &rows, std::int64_t begin, std::int64_t end, char *to) {
  constexpr std::int32_t kInfinityBits = 0x7f800000;
  constexpr std::int64_t kHalf = kInt8Inputs / 2;
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
      std::int8_t codes[kInt8Inputs] = {};
      float scale = 0;
      std::int32_t first = 0, second = 0;
      if (bits >= kInfinityBits) {
        scale = std::numeric_limits<float>::quiet_NaN();
      } else if (max >= kInt8SmallestMax) {
        scale = max / 127;
        round_numbers(from, 127 / max, codes);
        for (std::int64_t i = 0; i < kHalf; ++i) first += codes[i], second += codes[kHalf + i];
      }
      const std::int64_t r = row % group;
      std::memcpy(block + int8_codes_at(r), codes, sizeof codes);
      put_at(block + int8_scale_at(group, r), scale);
      put_at(block + int8_scaled_sum_at(group, r), scale * static_cast<float>(first + second));
      put_at(block + int8_minus_sums_at(group, r), static_cast<std::int16_t>(-first));
      put_at(block + int8_minus_sums_at(group, r) + 2, static_cast<std::int16_t>(-second));
      block += group * kInt8RowBytes;
    }
  }
}

// ---- weights -------------------------------------------------------------------------------------------------------

#if WEFT_TARGET == 0

// The codes of 16 outputs for 32 inputs, and what turns them into numbers.
struct Int8Weights {
  std::uint8_t codes[32][16];
  float scale[16], min[16], scales_of_16[2][16];
  std::int32_t offset[16];
};

// Reads the weights of outputs 16 g .. 16 g + 15 of a sub-block.
template <Format kFormat>
WEFT_INLINE void read_weights(const char *block, int sub, int g, Int8Weights &to) {
  using Block = Int8Block<kFormat>;
  constexpr Int8Format kInfo = Block::kInfo;
  const char *codes = block + Block::codes_at(sub, g), *planes = block + Block::planes_at(sub, g);
  for (int i = 0; i < 32; ++i) {
    for (int o = 0; o < 16; ++o) {
      const int place = o * 4 + i % 4;
      int code = number_at<std::uint8_t>(codes + i / 4 % Block::kWords * 64 + place);
      if (kInfo.bits < 8) code = i < 16 ? code & 15 : code >> 4;
      for (int p = 0; p < Block::kPlanes; ++p) {
        const int byte = number_at<std::uint8_t>(planes + p * 64 + i / 4 * 8 + place / 8);
        code |= (byte >> place % 8 & 1) << (4 + p);
      }
      to.codes[i][o] = static_cast<std::uint8_t>(kInfo.book != nullptr ? kInfo.book[code] : code);
    }
  }
  const char *scales = block + Block::kScales;
  for (int o = 0; o < 16; ++o) {
    const int n = 16 * g + o;  // of the half
    const float half = widen(number_at<Half>(scales + 2 * n));
    to.offset[o] = kInfo.offset, to.scale[o] = half;
    if (kInfo.scales == Int8Scales::kHalfAndMin) to.min[o] = widen(number_at<Half>(scales + 64 + 2 * n));
    if (kInfo.scales == Int8Scales::kSuper) {
      const float scale = number_at<std::uint8_t>(scales + 32 * sub + n);
      const float min = number_at<std::uint8_t>(scales + 256 + 32 * sub + n);
      to.scale[o] = widen(number_at<Half>(scales + 512 + 2 * n)) * scale;
      to.min[o] = -(widen(number_at<Half>(scales + 576 + 2 * n)) * min);
    }
    if (kInfo.scales == Int8Scales::kSuperOf16) {
      for (int k = 0; k < 2; ++k) to.scales_of_16[k][o] = number_at<std::int8_t>(scales + 32 * (2 * sub + k) + n);
      to.scale[o] = widen(number_at<Half>(scales + 512 + 2 * n));
    }
    if (kInfo.scales == Int8Scales::kExponent) {
      const std::uint32_t e = number_at<std::uint8_t>(scales + n);
      to.scale[o] = 0.5f * bits_float(e == 255 ? 0x7fc00000u : e == 0 ? 0x00400000u : e << 23);
    }
    if (kInfo.scales == Int8Scales::kFloat || kInfo.scales == Int8Scales::kFloatAndZero)
      to.scale[o] = number_at<float>(scales + 4 * n);
    if (kInfo.scales == Int8Scales::kFloatAndZero) to.offset[o] = number_at<std::uint8_t>(scales + 128 + n);
  }
}

#endif

#if WEFT_TARGET == 0

constexpr int kMaxInt8Rows = kInt8Group;

// Multiplies `count` rows from `row` on, of one group, by half of a panel, whose first output is `place`.
template <Format kFormat>
void int8_tile(std::int64_t count, const char *half, const Rows &in, std::int64_t row, bool, int place,
               const Epilogue &out) {
  using Block = Int8Block<kFormat>;
  for (int g = 0; g < 2; ++g) {
    const char *x = in.prepared + row / in.group * in.group_bytes;
    float sums[kMaxInt8Rows][16] = {};
    for (std::int64_t b = 0; b < int8_blocks(in.width); ++b, x += in.group * kInt8RowBytes) {
      Int8Weights w;
      read_weights<kFormat>(half + b / Block::kSubs * Block::kBytes, static_cast<int>(b % Block::kSubs), g, w);
      for (std::int64_t m = 0; m < count; ++m) {
        const std::int64_t r = row % in.group + m;
        const char *minus_sums = x + int8_minus_sums_at(in.group, r);
        std::int32_t parts[2][16];
        for (int k = 0; k < 2; ++k) {
          const std::int32_t minus_sum = number_at<std::int16_t>(minus_sums + 2 * k);
          for (int o = 0; o < 16; ++o) parts[k][o] = w.offset[o] * minus_sum;
          for (int i = 16 * k; i < 16 * k + 16; ++i) {
            const std::int32_t code = number_at<std::int8_t>(x + int8_codes_at(r) + i);
            for (int o = 0; o < 16; ++o) parts[k][o] += w.codes[i][o] * code;
          }
        }
        const float scale = number_at<float>(x + int8_scale_at(in.group, r));
        const float scaled_sum = number_at<float>(x + int8_scaled_sum_at(in.group, r));
        for (int o = 0; o < 16; ++o) {
          std::int32_t total = parts[0][o] + parts[1][o];
          if (Block::kInfo.scales == Int8Scales::kSuperOf16)
            total = parts[0][o] * w.scales_of_16[0][o] + parts[1][o] * w.scales_of_16[1][o];
          sums[m][o] = std::fma(static_cast<float>(total) * scale, w.scale[o], sums[m][o]);
          if (Block::kHasMins) sums[m][o] = std::fma(w.min[o], scaled_sum, sums[m][o]);
        }
      }
    }
    for (std::int64_t m = 0; m < count; ++m)
      for (int o = 0; o < 16; o += kLanes) store_epilogue(out, row + m, place + 16 * g + o, load(sums[m] + o));
  }
}

#else

constexpr std::int64_t kAhead = 8192;  // bytes from the weights that are read to those that are prefetched

#if WEFT_TARGET == 512
typedef __m512i Ints;
typedef __m512 Floats;
constexpr int kMaxInt8Rows = 8;

WEFT_INLINE Ints ints_at(const char *from) { return _mm512_loadu_si512(from); }
WEFT_INLINE Ints all_words(std::int32_t word) { return _mm512_set1_epi32(word); }
WEFT_INLINE Ints all_bytes(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
WEFT_INLINE Floats all_floats(float value) { return _mm512_set1_ps(value); }
WEFT_INLINE Floats as_floats(Ints bits) { return _mm512_castsi512_ps(bits); }
WEFT_INLINE Floats converted(Ints ints) { return _mm512_cvtepi32_ps(ints); }
WEFT_INLINE Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
WEFT_INLINE Ints low_bits(Ints bytes) { return _mm512_and_si512(bytes, all_bytes(15)); }
WEFT_INLINE Ints high_bits(Ints bytes) { return low_bits(_mm512_srli_epi16(bytes, 4)); }
WEFT_INLINE Ints pairs_times(Ints a, Ints b) { return _mm512_madd_epi16(a, b); }
WEFT_INLINE Ints shifted_left(Ints ints, int bits) { return _mm512_slli_epi32(ints, static_cast<unsigned>(bits)); }
WEFT_INLINE Ints larger(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
WEFT_INLINE Floats nan_where_equal(Ints a, Ints b, Floats other) {
  return _mm512_mask_blend_ps(_mm512_cmpeq_epi32_mask(a, b), other,
                              all_floats(std::numeric_limits<float>::quiet_NaN()));
}
WEFT_INLINE __m128i sixteen_bytes(const char *from) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(from)); }
WEFT_INLINE Ints unsigned_at(const char *from) { return _mm512_cvtepu8_epi32(sixteen_bytes(from)); }
WEFT_INLINE Ints signed_at(const char *from) { return _mm512_cvtepi8_epi32(sixteen_bytes(from)); }
WEFT_INLINE Floats halves_at(const char *from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
}
WEFT_INLINE Ints looked_up(const std::uint8_t *book, Ints places) {
  const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i *>(book));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(sixteen), places);
}
// Adds `value` to the bytes whose bit of a plane is set.
WEFT_INLINE Ints with_plane(Ints bytes, const char *plane, int value) {
  return _mm512_mask_add_epi8(bytes, _cvtu64_mask64(number_at<std::uint64_t>(plane)), bytes, all_bytes(value));
}
#else
typedef __m256i Ints;
typedef __m256 Floats;
constexpr int kMaxInt8Rows = 4;

WEFT_INLINE Ints ints_at(const char *from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)); }
WEFT_INLINE Ints all_words(std::int32_t word) { return _mm256_set1_epi32(word); }
WEFT_INLINE Ints all_bytes(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
WEFT_INLINE Floats all_floats(float value) { return _mm256_set1_ps(value); }
WEFT_INLINE Floats as_floats(Ints bits) { return _mm256_castsi256_ps(bits); }
WEFT_INLINE Floats converted(Ints ints) { return _mm256_cvtepi32_ps(ints); }
WEFT_INLINE Floats fused(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
WEFT_INLINE Ints low_bits(Ints bytes) { return _mm256_and_si256(bytes, all_bytes(15)); }
WEFT_INLINE Ints high_bits(Ints bytes) { return low_bits(_mm256_srli_epi16(bytes, 4)); }
WEFT_INLINE Ints pairs_times(Ints a, Ints b) { return _mm256_madd_epi16(a, b); }
WEFT_INLINE Ints shifted_left(Ints ints, int bits) { return _mm256_slli_epi32(ints, bits); }
WEFT_INLINE Ints larger(Ints a, Ints b) { return _mm256_max_epi32(a, b); }
WEFT_INLINE Floats nan_where_equal(Ints a, Ints b, Floats other) {
  return _mm256_or_ps(other, as_floats(_mm256_cmpeq_epi32(a, b)));
}
WEFT_INLINE __m128i eight_bytes(const char *from) { return _mm_loadl_epi64(reinterpret_cast<const __m128i *>(from)); }
WEFT_INLINE Ints unsigned_at(const char *from) { return _mm256_cvtepu8_epi32(eight_bytes(from)); }
WEFT_INLINE Ints signed_at(const char *from) { return _mm256_cvtepi8_epi32(eight_bytes(from)); }
WEFT_INLINE Floats halves_at(const char *from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
}
WEFT_INLINE Ints looked_up(const std::uint8_t *book, Ints places) {
  const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i *>(book));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(sixteen), places);
}
WEFT_INLINE Ints with_plane(Ints bytes, const char *plane, int value) {
  const Ints spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const Ints bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
  const Ints repeated = _mm256_shuffle_epi8(all_words(number_at<std::int32_t>(plane)), spread);
  const Ints is_set = _mm256_cmpeq_epi8(_mm256_and_si256(repeated, bit), bit);
  return _mm256_or_si256(bytes, _mm256_and_si256(is_set, all_bytes(value)));
}
#endif

constexpr int kInt8Vectors = 32 / kLanes;  // of the outputs of half of a panel

// The codes of the outputs of vector `v` for inputs 4 c .. 4 c + 3 of a sub-block.
template <Format kFormat>
WEFT_INLINE Ints codes_at(const char *block, int sub, int v, int c) {
  using Block = Int8Block<kFormat>;
  const int g = v * kLanes / 16, output = v * kLanes % 16;
  const Ints stored = ints_at(block + Block::codes_at(sub, g) + c % Block::kWords * 64 + output * 4);
  if constexpr (Block::kInfo.bits == 8) return stored;
  Ints codes = c < 4 ? low_bits(stored) : high_bits(stored);
  for (int p = 0; p < Block::kPlanes; ++p)
    codes = with_plane(codes, block + Block::planes_at(sub, g) + p * 64 + c * 8 + output / 2, 16 << p);
  if constexpr (Block::kInfo.book != nullptr) codes = looked_up(Block::kInfo.book, codes);
  return codes;
}

// The scales of a vector of outputs for 32 inputs.
struct Int8Scale {
  Floats scale, min;
  Ints offsets;   // pairs of 16 bits, for the first and the last 16 inputs
  Ints of_16[2];  // Q6_K: the scales of the first and the last 16 inputs
};

template <Format kFormat>
WEFT_INLINE Int8Scale scale_at(const char *block, int sub, int v) {
  using Block = Int8Block<kFormat>;
  constexpr Int8Scales kScales = Block::kInfo.scales;
  const char *at = block + Block::kScales;
  const int n = v * kLanes;
  Int8Scale scale;
  scale.offsets = all_words(Block::kInfo.offset * 0x10001);
  if constexpr (kScales == Int8Scales::kHalf || kScales == Int8Scales::kHalfAndMin) {
    scale.scale = halves_at(at + 2 * n);
    if constexpr (Block::kHasMins) scale.min = halves_at(at + 64 + 2 * n);
  } else if constexpr (kScales == Int8Scales::kSuper) {
    const Floats scales = converted(unsigned_at(at + 32 * sub + n)),
                 mins = converted(unsigned_at(at + 256 + 32 * sub + n));
    scale.scale = halves_at(at + 512 + 2 * n) * scales;
    scale.min = -(halves_at(at + 576 + 2 * n) * mins);
  } else if constexpr (kScales == Int8Scales::kSuperOf16) {
    for (int k = 0; k < 2; ++k) scale.of_16[k] = signed_at(at + 32 * (2 * sub + k) + n);
    scale.scale = halves_at(at + 512 + 2 * n);
  } else if constexpr (kScales == Int8Scales::kExponent) {
    const Ints exponents = unsigned_at(at + n);
    const Floats powers = as_floats(larger(shifted_left(exponents, 23), all_words(0x00400000)));
    scale.scale = nan_where_equal(exponents, all_words(255), powers * all_floats(0.5f));
  } else {
    scale.scale = as_floats(ints_at(at + 4 * n));
    if constexpr (kScales == Int8Scales::kFloatAndZero) {
      const Ints zeros = unsigned_at(at + 128 + n);
      scale.offsets = zeros + shifted_left(zeros, 16);
    }
  }
  return scale;
}

WEFT_INLINE Ints word_of(const char *x, int c) { return all_words(number_at<std::int32_t>(x + 4 * c)); }

#if WEFT_TARGET == 512

// Adds the products of words begin..end-1 to `sum`.
WEFT_INLINE Ints add_words(Ints sum, const Ints *codes, const char *x, int begin, int end) {
  WEFT_UNROLL for (int c = begin; c < end; ++c) sum = _mm512_dpbusd_epi32(sum, codes[c], word_of(x, c));
  return sum;
}

// Writes the sums of 32 inputs, as floats, for kRows rows with codes `x` and negated sums `minus_sums`.
template <Format kFormat, int kRows>
WEFT_INLINE void sum_codes(const char *block, int sub, int v, const Int8Scale &scale, const char *x,
                           const char *minus_sums, Floats *sums) {
  using Block = Int8Block<kFormat>;
  Ints codes[8];
  WEFT_UNROLL for (int c = 0; c < 8; ++c) codes[c] = codes_at<kFormat>(block, sub, v, c);
  WEFT_UNROLL for (int m = 0; m < kRows; ++m) {
    const char *row = x + m * kInt8Inputs;
    const Ints minus = word_of(minus_sums, m);
    if constexpr (Block::kInfo.scales == Int8Scales::kSuperOf16) {
      // The sums of 16 inputs times their scales, and the total, are below 2^24, so floats are exact.
      Ints halves[2];
      for (int k = 0; k < 2; ++k) {
        halves[k] = pairs_times(all_words(Block::kInfo.offset << 16 * k), minus);
        halves[k] = add_words(halves[k], codes, row, 4 * k, 4 * k + 4);
      }
      sums[m] =
          fused(converted(halves[1]), converted(scale.of_16[1]), converted(halves[0]) * converted(scale.of_16[0]));
    } else {
      Ints sum = Block::kHasOffset ? pairs_times(scale.offsets, minus) : all_words(0);
      if constexpr (kRows < 4) {  // two chains of additions where few rows would wait for one
        sum = _mm512_add_epi32(add_words(sum, codes, row, 0, 4), add_words(all_words(0), codes, row, 4, 8));
      } else {
        sum = add_words(sum, codes, row, 0, 8);
      }
      sums[m] = converted(sum);
    }
  }
}

#else

// Pairs of the low 16 bits of words.
WEFT_INLINE Ints word_pairs(Ints first, Ints second) {
  return _mm256_blend_epi16(first, shifted_left(second, 16), 0xaa);
}

template <Format kFormat, int kRows>
WEFT_INLINE void sum_codes(const char *block, int sub, int v, const Int8Scale &scale, const char *x,
                           const char *minus_sums, Floats *sums) {
  using Block = Int8Block<kFormat>;
  constexpr bool kOf16 = Block::kInfo.scales == Int8Scales::kSuperOf16;
  const Ints one = _mm256_set1_epi16(1);
  Ints totals[kRows];
  if constexpr (Block::kInfo.max_code == 255) {
    // The products of codes without sign would not fit 16 bits, so the sign of a weight goes to the input.
    WEFT_UNROLL for (int m = 0; m < kRows; ++m) totals[m] = all_words(0);
    WEFT_UNROLL for (int c = 0; c < 8; ++c) {
      const Ints codes = _mm256_xor_si256(codes_at<kFormat>(block, sub, v, c), all_bytes(0x80));
      const Ints absolute = _mm256_abs_epi8(codes);
      WEFT_UNROLL for (int m = 0; m < kRows; ++m) {
        const Ints inputs = _mm256_sign_epi8(word_of(x + m * kInt8Inputs, c), codes);
        totals[m] = _mm256_add_epi32(totals[m], pairs_times(_mm256_maddubs_epi16(absolute, inputs), one));
      }
    }
  } else {
    // So many words have sums below 2^15.
    constexpr int kFit = 32767 / (2 * 127 * Block::kInfo.max_code), kWords = kFit >= 8 ? 8 : kFit >= 4 ? 4 : 2;
    Ints factors[2] = {one, one}, offsets = scale.offsets;
    if constexpr (kOf16) {
      for (int k = 0; k < 2; ++k) factors[k] = word_pairs(scale.of_16[k], scale.of_16[k]);
      offsets = _mm256_slli_epi16(word_pairs(scale.of_16[0], scale.of_16[1]), 5);
      static_assert(!kOf16 || Block::kInfo.offset == 1 << 5);
    }
    WEFT_UNROLL for (int m = 0; m < kRows; ++m) totals[m] =
        Block::kHasOffset ? pairs_times(offsets, word_of(minus_sums, m)) : all_words(0);
    WEFT_UNROLL for (int begin = 0; begin < 8; begin += kWords) {
      Ints pairs[kRows];
      WEFT_UNROLL for (int c = begin; c < begin + kWords; ++c) {
        const Ints codes = codes_at<kFormat>(block, sub, v, c);
        WEFT_UNROLL for (int m = 0; m < kRows; ++m) {
          const Ints products = _mm256_maddubs_epi16(codes, word_of(x + m * kInt8Inputs, c));
          pairs[m] = c == begin ? products : _mm256_add_epi16(pairs[m], products);
        }
      }
      WEFT_UNROLL for (int m = 0; m < kRows; ++m) totals[m] =
          _mm256_add_epi32(totals[m], pairs_times(pairs[m], factors[begin / 4]));
    }
  }
  WEFT_UNROLL for (int m = 0; m < kRows; ++m) sums[m] = converted(totals[m]);
}

#endif

// Asks for the memory kAhead bytes after the part of a block that a sub-block reads.
template <Format kFormat>
WEFT_INLINE void fetch_ahead(const char *block, int sub) {
  using Block = Int8Block<kFormat>;
  constexpr int kLines = Block::kBytes / kLineBytes, kLinesOfSub = (kLines + Block::kSubs - 1) / Block::kSubs;
  const char *from = block + kAhead + sub * kLines / Block::kSubs * kLineBytes;
  WEFT_UNROLL for (int line = 0; line < kLinesOfSub; ++line) __builtin_prefetch(from + line * kLineBytes);
}

// Multiplies kRows rows from `row` on, of one group, by half of a panel, whose first output is `place`.
template <Format kFormat, int kRows>
[[gnu::noinline]] void int8_rows_tile(const char *half, const Rows &in, std::int64_t row, bool fetches, int place,
                                      const Epilogue &out) {
  using Block = Int8Block<kFormat>;
  const std::int64_t first = row % in.group;
  const char *x = in.prepared + row / in.group * in.group_bytes;
  Floats sums[kInt8Vectors][kRows] = {};
  for (std::int64_t b = 0; b < int8_blocks(in.width); ++b, x += in.group * kInt8RowBytes) {
    const char *block = half + b / Block::kSubs * Block::kBytes;
    const int sub = static_cast<int>(b % Block::kSubs);
    if (fetches) fetch_ahead<kFormat>(block, sub);
    const char *codes = x + int8_codes_at(first), *scales = x + int8_scale_at(in.group, first);
    const char *scaled_sums = x + int8_scaled_sum_at(in.group, first);
    const char *minus_sums = x + int8_minus_sums_at(in.group, first);
    WEFT_UNROLL for (int v = 0; v < kInt8Vectors; ++v) {
      const Int8Scale scale = scale_at<kFormat>(block, sub, v);
      Floats products[kRows];
      sum_codes<kFormat, kRows>(block, sub, v, scale, codes, minus_sums, products);
      WEFT_UNROLL for (int m = 0; m < kRows; ++m) {
        const Floats scaled = products[m] * all_floats(number_at<float>(scales + 4 * m));
        sums[v][m] = fused(scaled, scale.scale, sums[v][m]);
        if constexpr (Block::kHasMins)
          sums[v][m] = fused(scale.min, all_floats(number_at<float>(scaled_sums + 4 * m)), sums[v][m]);
      }
    }
  }
  WEFT_UNROLL for (int v = 0; v < kInt8Vectors; ++v) WEFT_UNROLL for (int m = 0; m < kRows; ++m)
      store_epilogue(out, row + m, place + v * kLanes, sums[v][m]);
}

// Calls int8_rows_tile with `count` rows, at most kRows, as a template argument.
template <Format kFormat, int kRows = kMaxInt8Rows>
WEFT_INLINE void int8_tile(std::int64_t count, const char *half, const Rows &in, std::int64_t row, bool fetches,
                           int place, const Epilogue &out) {
  if (count == kRows) return int8_rows_tile<kFormat, kRows>(half, in, row, fetches, place, out);
  if constexpr (kRows > 1) int8_tile<kFormat, kRows - 1>(count, half, in, row, fetches, place, out);
}

#endif

// ---- products ------------------------------------------------------------------------------------------------------

// Multiplies prepared rows by one panel, half by half. The first rows read a half from memory, the others from the
// cache.
template <Format kFormat>
void times_int8_panel(const Rows &in, const void *panel, float *, const Epilogue &out) {
  using Block = Int8Block<kFormat>;
  const char *half = static_cast<const char *>(panel);
  for (int place = 0; place < std::min(out.valid, kPanel); place += 32) {
    for (std::int64_t row = 0; row < in.count;) {
      const std::int64_t left = std::min(in.count - row, in.group - row % in.group);  // of this group
      const std::int64_t count = ceil_div(left, ceil_div(left, kMaxInt8Rows));
      int8_tile<kFormat>(count, half, in, row, row == 0, place, out);
      row += count;
    }
    half += ceil_div(in.width, 32 * Block::kSubs) * Block::kBytes;
  }
}

std::int64_t no_scratch(std::int64_t, std::int64_t) { return 0; }

#if WEFT_TARGET == 512
constexpr std::int64_t kInt8Speed = 3;
#elif WEFT_TARGET == 256
constexpr std::int64_t kInt8Speed = 2;
#else
constexpr std::int64_t kInt8Speed = 1;
#endif

template <Format kFormat>
constexpr PanelKernel int8_kernel() {
  if constexpr (int8_format(kFormat).bits > 0) return {times_int8_panel<kFormat>, no_scratch, kInt8Speed};
  return {};
}

template <int... kFormats>
constexpr Int8Kernels int8_kernels(std::integer_sequence<int, kFormats...>) {
  return {{int8_kernel<static_cast<Format>(kFormats)>()...}, {kInt8Group, kInt8Group, int8_bytes, round_rows}};
}

constexpr Int8Kernels kInt8Kernels = int8_kernels(std::make_integer_sequence<int, kNumFormats>());

#undef WEFT_UNROLL
