// Products of quantised weights with int8 rows. linear.cpp includes this once for each instruction set (WEFT_TARGET:
// 512 has VNNI), each time in another namespace. So there is no include guard.
//
// For each 32 inputs, sums of codes are exact integers. Then a product adds float32 numbers in the order of inputs:
//
//   sum = fma(float(integer) * row's scale, scale, sum)       and with mins:  sum = fma(min, row's scaled sum, sum)
//
// So all instruction sets give the same bits, for any number of rows.

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
      write_as(block + int8_scale_at(group, r), scale);
      write_as(block + int8_scaled_sum_at(group, r), scale * static_cast<float>(first + second));
      write_as(block + int8_minus_sums_at(group, r), static_cast<std::int16_t>(-first));
      write_as(block + int8_minus_sums_at(group, r) + 2, static_cast<std::int16_t>(-second));
      block += group * kInt8RowBytes;
    }
  }
}

// ---- weights -------------------------------------------------------------------------------------------------------

#if WEFT_TARGET == 0

// The codes of 16 outputs for 32 inputs, and what turns them into numbers.
struct Int8Weights {
  std::int16_t codes[32][16];
  float scale[16], min[16];
  std::int32_t offset[16], scales_of_16[2][16];
};

// Reads the weights of outputs 16 g .. 16 g + 15 of a sub-block.
template <Format kFormat>
WEFT_INLINE void read_weights(const char *block, int sub, int g, Int8Weights &to) {
  constexpr Int8Format kInfo = int8_format(kFormat);
  constexpr HalfLayout kLayout = half_layout(kFormat);
  for (int c = 0; c < 8; ++c) {  // inputs 4 c .. 4 c + 3
    std::uint32_t words[16];
    const int word = kLayout.bits == 8 ? 8 * sub + c : 4 * sub + c % 4, shift = kLayout.bits == 4 && c >= 4 ? 4 : 0;
    std::memcpy(words, block + word_at(kFormat, word, 16 * g), sizeof words);
    for (int i = 0; i < 4; ++i) {
      std::int16_t *codes = to.codes[4 * c + i];
      for (int o = 0; o < 16; ++o)
        codes[o] = static_cast<std::int16_t>(words[o] >> (8 * i + shift) & (kLayout.bits == 8 ? 255 : 15));
      for (int p = 0; p < kLayout.planes; ++p) {
        const auto plane = read_as<std::uint64_t>(block + plane_at(kFormat, sub, 16 * g, p) + 8 * c);
        for (int o = 0; o < 16; ++o) codes[o] |= static_cast<std::int16_t>((plane >> (4 * o + i) & 1) << (4 + p));
      }
      if constexpr (kInfo.book != nullptr) {
        for (int o = 0; o < 16; ++o) codes[o] = kInfo.book[codes[o]];
      }
    }
  }
  const char *scales = block + scales_at(kFormat);
  for (int o = 0; o < 16; ++o) {
    const int n = 16 * g + o;  // of the half
    const float half = widen(read_as<Half>(scales + 2 * n));
    to.offset[o] = kInfo.offset, to.scale[o] = half;
    if (kInfo.scales == Int8Scales::kHalfAndMin) to.min[o] = widen(read_as<Half>(scales + 64 + 2 * n));
    if (kInfo.scales == Int8Scales::kSuper) {
      const float scale = read_as<std::uint8_t>(scales + 32 * sub + n);
      const float min = read_as<std::uint8_t>(scales + 256 + 32 * sub + n);
      to.scale[o] = widen(read_as<Half>(scales + 512 + 2 * n)) * scale;
      to.min[o] = -(widen(read_as<Half>(scales + 576 + 2 * n)) * min);
    }
    if (kInfo.scales == Int8Scales::kSuperOf16) {
      for (int k = 0; k < 2; ++k) to.scales_of_16[k][o] = read_as<std::int8_t>(scales + 32 * (2 * sub + k) + n);
      to.scale[o] = widen(read_as<Half>(scales + 512 + 2 * n));
    }
    if (kInfo.scales == Int8Scales::kExponent) {
      const std::uint32_t e = read_as<std::uint8_t>(scales + n);
      to.scale[o] = 0.5f * bits_float(e == 255 ? 0x7fc00000u : e == 0 ? 0x00400000u : e << 23);
    }
    if (kInfo.scales == Int8Scales::kFloat || kInfo.scales == Int8Scales::kFloatAndZero)
      to.scale[o] = read_as<float>(scales + 4 * n);
    if (kInfo.scales == Int8Scales::kFloatAndZero) to.offset[o] = read_as<std::uint8_t>(scales + 128 + n);
  }
}

// Adds the products of 32 inputs of one row, in `x`, to its sums for 16 outputs.
template <Format kFormat>
WEFT_INLINE void add_products(const Int8Weights &weights, const char *x, std::int64_t group, std::int64_t row,
                              float *sums) {
  std::int32_t parts[2][16];
  for (int k = 0; k < 2; ++k) {
    const std::int32_t minus_sum = read_as<std::int16_t>(x + int8_minus_sums_at(group, row) + 2 * k);
    for (int o = 0; o < 16; ++o) parts[k][o] = weights.offset[o] * minus_sum;
    for (int i = 16 * k; i < 16 * k + 16; ++i) {
      const std::int16_t code = read_as<std::int8_t>(x + int8_codes_at(row) + i);
      for (int o = 0; o < 16; ++o) parts[k][o] += std::int32_t{weights.codes[i][o]} * code;
    }
  }
  const float scale = read_as<float>(x + int8_scale_at(group, row));
  const float scaled_sum = read_as<float>(x + int8_scaled_sum_at(group, row));
  for (int o = 0; o < 16; ++o) {
    std::int32_t total = parts[0][o] + parts[1][o];
    if constexpr (int8_format(kFormat).scales == Int8Scales::kSuperOf16)
      total = parts[0][o] * weights.scales_of_16[0][o] + parts[1][o] * weights.scales_of_16[1][o];
    sums[o] = std::fma(static_cast<float>(total) * scale, weights.scale[o], sums[o]);
    if constexpr (has_mins(kFormat)) sums[o] = std::fma(weights.min[o], scaled_sum, sums[o]);
  }
}

// Multiplies prepared rows by one panel, group by group.
template <Format kFormat>
void times_int8_panel(const Rows &in, const void *panel, float *, const Epilogue &out) {
  constexpr Block kBlock = block_of(kFormat);
  constexpr std::int64_t kSubs = kBlock.inputs / kSub;
  const std::int64_t half_bytes = ceil_div(in.width, kBlock.inputs) * kBlock.half_bytes;
  for (std::int64_t first = 0; first < in.count; first += in.group) {
    const std::int64_t rows = std::min(in.group, in.count - first);
    for (int place = 0; place < out.valid; place += 16) {
      const char *half = static_cast<const char *>(panel) + place / kHalf * half_bytes;
      const char *x = in.prepared + first / in.group * in.group_bytes;
      float sums[kInt8Group][16] = {};
      for (std::int64_t b = 0; b < int8_blocks(in.width); ++b, x += in.group * kInt8RowBytes) {
        Int8Weights weights;
        read_weights<kFormat>(half + b / kSubs * kBlock.half_bytes, static_cast<int>(b % kSubs), place % kHalf / 16,
                              weights);
        for (std::int64_t r = 0; r < rows; ++r) add_products<kFormat>(weights, x, in.group, r, sums[r]);
      }
      for (std::int64_t r = 0; r < rows; ++r)
        for (int o = 0; o < 16; o += kLanes) store_epilogue(out, first + r, place + o, load(sums[r] + o));
    }
  }
}

std::int64_t int8_scratch(std::int64_t, std::int64_t) { return 0; }

#else

constexpr std::int64_t kAhead = 16384;  // bytes from the weights that are read to those that are prefetched

#if WEFT_TARGET == 512
typedef __m512i Ints;
typedef __m512 Floats;
constexpr int kTileInt8Rows = 8;
#define WEFT_UNROLL_VECTORS _Pragma("GCC unroll 2")

// The largest code of the kernels that a format shares with others: products of any codes have sums of 32 bits.
constexpr int shared_max_code(Format) { return 255; }

// Whether it pays that several tiles share a format's unpacked weights.
constexpr bool is_slow_to_unpack(Format format) { return half_layout(format).planes > 0; }

WEFT_INLINE Ints ints_at(const char *from) { return _mm512_loadu_si512(from); }
WEFT_INLINE Floats floats_at(const float *from) { return _mm512_loadu_ps(from); }
WEFT_INLINE Ints all_words(std::int32_t word) { return _mm512_set1_epi32(word); }
WEFT_INLINE Ints all_bytes(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
// Keeps the compiler from loading a value again at each use.
WEFT_INLINE Ints in_register(Ints value) {
  asm("" : "+v"(value));
  return value;
}
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
  return _mm512_mask_add_epi8(bytes, _cvtu64_mask64(read_as<std::uint64_t>(plane)), bytes, all_bytes(value));
}
#else
typedef __m256i Ints;
typedef __m256 Floats;
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

WEFT_INLINE Ints ints_at(const char *from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)); }
WEFT_INLINE Floats floats_at(const float *from) { return _mm256_loadu_ps(from); }
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
  const Ints repeated = _mm256_shuffle_epi8(all_words(read_as<std::int32_t>(plane)), spread);
  const Ints is_set = _mm256_cmpeq_epi8(_mm256_and_si256(repeated, bit), bit);
  return _mm256_or_si256(bytes, _mm256_and_si256(is_set, all_bytes(value)));
}
#endif

constexpr int kInt8Vectors = kHalf / kLanes;  // of the outputs of half of a panel

template <class Vector>
WEFT_INLINE void store_vector(void *to, Vector vector) {
  std::memcpy(to, &vector, sizeof vector);
}

// The scales of a vector of outputs for 32 inputs.
struct Int8Scale {
  Floats scale, min;
  Ints offsets;   // pairs of 16 bits, for the first and the last 16 inputs
  Ints of_16[2];  // Q6_K: the scales of the first and the last 16 inputs
};

// How sums of codes become those of numbers.
enum class Int8Kind { kOffset, kMins, kOf16 };

constexpr Int8Kind int8_kind(Format format) {
  if (has_mins(format)) return Int8Kind::kMins;
  return int8_format(format).scales == Int8Scales::kSuperOf16 ? Int8Kind::kOf16 : Int8Kind::kOffset;
}

// The weights of a sub-block as they are stored, for a vector `v` of outputs.
template <Format kFormat>
struct Int8Stored {
  static constexpr Int8Format kInfo = int8_format(kFormat);
  static constexpr Int8Kind kKind = int8_kind(kFormat);
  static constexpr int kMaxCode = kInfo.max_code;

  const char *block;
  int sub;

  // The codes for inputs 4 c .. 4 c + 3.
  WEFT_INLINE Ints codes(int v, int c) const {
    constexpr HalfLayout kLayout = half_layout(kFormat);
    const int output = v * kLanes;
    if constexpr (kLayout.bits == 8) return ints_at(block + word_at(kFormat, 8 * sub + c, output));
    const Ints both = ints_at(block + word_at(kFormat, 4 * sub + c % 4, output));
    Ints codes = c < 4 ? low_bits(both) : high_bits(both);
    for (int p = 0; p < kLayout.planes; ++p) {
      const char *plane = block + plane_at(kFormat, sub, output, p);
      codes = with_plane(codes, plane + c * 8 + output % 16 / 2, 16 << p);
    }
    if constexpr (kInfo.book != nullptr) codes = looked_up(kInfo.book, codes);
    return codes;
  }

  WEFT_INLINE Int8Scale scale(int v) const {
    constexpr Int8Scales kScales = kInfo.scales;
    const char *at = block + scales_at(kFormat);
    const int n = v * kLanes;
    Int8Scale scale;
    scale.offsets = all_words(kInfo.offset * 0x10001);
    if constexpr (kScales == Int8Scales::kHalf || kScales == Int8Scales::kHalfAndMin) {
      scale.scale = halves_at(at + 2 * n);
      if constexpr (kKind == Int8Kind::kMins) scale.min = halves_at(at + 64 + 2 * n);
    } else if constexpr (kScales == Int8Scales::kSuper) {
      scale.scale = halves_at(at + 512 + 2 * n) * converted(unsigned_at(at + 32 * sub + n));
      scale.min = -(halves_at(at + 576 + 2 * n) * converted(unsigned_at(at + 256 + 32 * sub + n)));
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
};

// The same of unpacked weights. Formats share these kernels.
template <int kMax, Int8Kind kKindOf>
struct Int8Ready {
  static constexpr Int8Kind kKind = kKindOf;
  static constexpr int kMaxCode = kMax;

  const Int8Unpacked &from;

  WEFT_INLINE Ints codes(int v, int c) const {
    return ints_at(reinterpret_cast<const char *>(from.codes[v * kLanes / 16][c]) + v * kLanes % 16 * 4);
  }

  WEFT_INLINE Int8Scale scale(int v) const {
    const int n = v * kLanes;
    const auto pairs = [&](int k) { return reinterpret_cast<const char *>(from.pairs[k] + n); };
    Int8Scale scale;
    scale.scale = floats_at(from.scales + n);
    scale.offsets = all_words(kOffsetOf16 * 0x10001);
    if constexpr (kKind == Int8Kind::kOffset) scale.offsets = ints_at(pairs(0));
    if constexpr (kKind == Int8Kind::kMins) scale.min = floats_at(from.mins + n);
    if constexpr (kKind == Int8Kind::kOf16) scale.of_16[0] = ints_at(pairs(0)), scale.of_16[1] = ints_at(pairs(1));
    return scale;
  }
};

WEFT_INLINE Ints word_of(const char *x, int c) { return all_words(read_as<std::int32_t>(x + 4 * c)); }

// Adds the product of 32 inputs of row `row`, `total` before scaling, to its sum. `x` is the row's group.
template <class Weights>
WEFT_INLINE void add_scaled(Floats total, const char *x, std::int64_t group, std::int64_t row, const Int8Scale &scale,
                            Floats &sum) {
  sum = fused(total * all_floats(read_as<float>(x + int8_scale_at(group, row))), scale.scale, sum);
  if constexpr (Weights::kKind == Int8Kind::kMins)
    sum = fused(scale.min, all_floats(read_as<float>(x + int8_scaled_sum_at(group, row))), sum);
}

#if WEFT_TARGET == 512

// Returns the sum of the products of 32 inputs from those of 16 and their scales. The products with scales, and the
// sum, are below 2^24, so floats are exact.
WEFT_INLINE Floats scaled_halves(Ints first, Ints second, const Int8Scale &scale) {
  return fused(converted(second), converted(scale.of_16[1]), converted(first) * converted(scale.of_16[0]));
}

// Adds the products of 32 inputs of kRows rows, from `row` on of the group `x`, to their sums.
template <class Weights, int kRows>
WEFT_INLINE void add_products(const Weights &weights, const char *x, std::int64_t group, std::int64_t row,
                              Floats (&sums)[kInt8Vectors][kRows]) {
  constexpr bool kOf16 = Weights::kKind == Int8Kind::kOf16;
  // Two chains of additions: where the halves have scales, or where few rows would wait for one chain.
  constexpr int kChains = kOf16 || kRows < 4 ? 2 : 1;
  const char *codes = x + int8_codes_at(row), *minus_sums = x + int8_minus_sums_at(group, row);
  Int8Scale scales[kInt8Vectors];
  Ints totals[kInt8Vectors][kRows][kChains];
  WEFT_UNROLL for (int v = 0; v < kInt8Vectors; ++v) {
    scales[v] = weights.scale(v);
    WEFT_UNROLL for (int m = 0; m < kRows; ++m) {
      const Ints minus = word_of(minus_sums, m);
      Ints *chains = totals[v][m];
      for (int k = 0; k < kChains; ++k) chains[k] = all_words(0);
      if constexpr (Weights::kKind == Int8Kind::kOffset) chains[0] = pairs_times(scales[v].offsets, minus);
      if constexpr (kOf16) {
        for (int k = 0; k < 2; ++k) chains[k] = pairs_times(all_words(kOffsetOf16 << 16 * k), minus);
      }
    }
  }
  WEFT_UNROLL for (int c = 0; c < 8; ++c) {
    Ints words[kInt8Vectors];
    WEFT_UNROLL for (int v = 0; v < kInt8Vectors; ++v) words[v] = weights.codes(v, c);
    WEFT_UNROLL for (int m = 0; m < kRows; ++m) {
      // All vectors share one load: a load for each would take as long as their products.
      const Ints inputs = in_register(word_of(codes + m * kInt8Inputs, c));
      WEFT_UNROLL for (int v = 0; v < kInt8Vectors; ++v) {
        Ints &total = totals[v][m][c * kChains / 8];
        total = _mm512_dpbusd_epi32(total, words[v], inputs);
      }
    }
  }
  WEFT_UNROLL for (int v = 0; v < kInt8Vectors; ++v) WEFT_UNROLL for (int m = 0; m < kRows; ++m) {
    const Ints *chains = totals[v][m];
    Floats total;
    if constexpr (kOf16) {
      total = scaled_halves(chains[0], chains[1], scales[v]);
    } else {
      total = converted(kChains == 2 ? _mm512_add_epi32(chains[0], chains[kChains - 1]) : chains[0]);
    }
    add_scaled<Weights>(total, x, group, row + m, scales[v], sums[v][m]);
  }
}

#else

// Pairs of the low 16 bits of words.
WEFT_INLINE Ints word_pairs(Ints first, Ints second) {
  return _mm256_blend_epi16(first, shifted_left(second, 16), 0xaa);
}

template <class Weights, int kRows>
WEFT_INLINE void sum_codes(const Weights &weights, int v, const Int8Scale &scale, const char *x, const char *minus_sums,
                           Floats *sums) {
  constexpr bool kOf16 = Weights::kKind == Int8Kind::kOf16;
  const Ints one = _mm256_set1_epi16(1);
  Ints totals[kRows];
  if constexpr (Weights::kMaxCode == 255) {
    // The products of codes without sign would not fit 16 bits, so the sign of a weight goes to the input.
    WEFT_UNROLL for (int m = 0; m < kRows; ++m) totals[m] = all_words(0);
    WEFT_UNROLL for (int c = 0; c < 8; ++c) {
      const Ints codes = _mm256_xor_si256(weights.codes(v, c), all_bytes(0x80));
      const Ints absolute = _mm256_abs_epi8(codes);
      WEFT_UNROLL for (int m = 0; m < kRows; ++m) {
        const Ints inputs = _mm256_sign_epi8(word_of(x + m * kInt8Inputs, c), codes);
        totals[m] = _mm256_add_epi32(totals[m], pairs_times(_mm256_maddubs_epi16(absolute, inputs), one));
      }
    }
  } else {
    // So many words have sums below 2^15.
    constexpr int kFit = 32767 / (2 * 127 * Weights::kMaxCode), kWords = kFit >= 8 ? 8 : kFit >= 4 ? 4 : 2;
    Ints factors[2] = {one, one}, offsets = scale.offsets;
    if constexpr (kOf16) {
      for (int k = 0; k < 2; ++k) factors[k] = word_pairs(scale.of_16[k], scale.of_16[k]);
      offsets = _mm256_slli_epi16(word_pairs(scale.of_16[0], scale.of_16[1]), 5);
      static_assert(kOffsetOf16 == 1 << 5);
    }
    WEFT_UNROLL for (int m = 0; m < kRows; ++m) totals[m] =
        Weights::kKind != Int8Kind::kMins ? pairs_times(offsets, word_of(minus_sums, m)) : all_words(0);
    WEFT_UNROLL for (int begin = 0; begin < 8; begin += kWords) {
      Ints pairs[kRows];
      WEFT_UNROLL for (int c = begin; c < begin + kWords; ++c) {
        const Ints codes = weights.codes(v, c);
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

// Adds the products of 32 inputs of kRows rows, from `row` on of the group `x`, to their sums.
template <class Weights, int kRows>
WEFT_INLINE void add_products(const Weights &weights, const char *x, std::int64_t group, std::int64_t row,
                              Floats (&sums)[kInt8Vectors][kRows]) {
  WEFT_UNROLL_VECTORS for (int v = 0; v < kInt8Vectors; ++v) {
    const Int8Scale scale = weights.scale(v);
    Floats totals[kRows];
    sum_codes<Weights, kRows>(weights, v, scale, x + int8_codes_at(row), x + int8_minus_sums_at(group, row), totals);
    WEFT_UNROLL for (int m = 0; m < kRows; ++m) add_scaled<Weights>(totals[m], x, group, row + m, scale, sums[v][m]);
  }
}

#endif

// Asks for the memory kAhead bytes after the part of a block that belongs to a sub-block.
template <Format kFormat>
WEFT_INLINE void fetch_ahead(const char *block, std::int64_t sub) {
  constexpr std::int64_t kSubs = block_of(kFormat).inputs / kSub, kLines = block_of(kFormat).half_bytes / kLineBytes;
  const char *from = block + kAhead + sub * kLines / kSubs * kLineBytes;
  constexpr std::int64_t kCount = ceil_div(kLines, kSubs);
  for (std::int64_t line = 0; line < kCount; ++line) __builtin_prefetch(from + line * kLineBytes, 0, 2);
}

// Returns sub-block `sub` of half of a panel, and asks for a later one.
template <Format kFormat>
WEFT_INLINE Int8Stored<kFormat> sub_block(const char *half, std::int64_t sub) {
  constexpr std::int64_t kSubs = block_of(kFormat).inputs / kSub;
  const char *block = half + sub / kSubs * block_of(kFormat).half_bytes;
  fetch_ahead<kFormat>(block, sub % kSubs);
  return {block, static_cast<int>(sub % kSubs)};
}

// Applies the epilogue to the sums [rows, 32] of half of a panel, whose first output is `place`.
void store_half(const float *sums, std::int64_t rows, int place, const Epilogue &out) {
  for (std::int64_t row = 0; row < rows; ++row, sums += kHalf)
    for (int n = 0; n < kHalf; n += kLanes) store_epilogue(out, row, place + n, load(sums + n));
}

template <int kRows>
WEFT_INLINE void store_sums(const Floats (&sums)[kInt8Vectors][kRows], float *to) {
  WEFT_UNROLL_VECTORS for (int v = 0; v < kInt8Vectors; ++v) WEFT_UNROLL for (int m = 0; m < kRows; ++m)
      store_vector(to + m * kHalf + v * kLanes, sums[v][m]);
}

// Multiplies kRows rows from `row` on, of one group, by half of a panel. `to` [kRows, 32] receives the sums.
template <Format kFormat, int kRows>
[[gnu::noinline]] void multiply_tile(const char *half, const Rows &in, std::int64_t row, float *to) {
  Floats sums[kInt8Vectors][kRows] = {};
  const char *x = in.prepared + row / in.group * in.group_bytes;
  for (std::int64_t s = 0; s < int8_blocks(in.width); ++s, x += in.group * kInt8RowBytes)
    add_products<Int8Stored<kFormat>, kRows>(sub_block<kFormat>(half, s), x, in.group, row % in.group, sums);
  store_sums<kRows>(sums, to);
}

template <Format kFormat, int kRows = kTileInt8Rows>
WEFT_INLINE void multiply_tile(std::int64_t rows, const char *half, const Rows &in, std::int64_t row, float *to) {
  if (rows == kRows) return multiply_tile<kFormat, kRows>(half, in, row, to);
  if constexpr (kRows > 1) multiply_tile<kFormat, kRows - 1>(rows, half, in, row, to);
}

// Returns the number of rows of the next of a group's tiles, which have about the same size, with `left` rows left.
WEFT_INLINE std::int64_t tile_rows(std::int64_t left) { return ceil_div(left, ceil_div(left, kTileInt8Rows)); }

// Multiplies the rows from `row` on, the first of a group, by half of a panel. `sums` [rows, 32] receives the sums of
// all. The first tile reads the weights from memory, the others from the cache.
template <Format kFormat>
void multiply_rows(const char *half, const Rows &in, std::int64_t row, float *sums) {
  for (std::int64_t count; row < in.count; row += count) {
    count = tile_rows(std::min(in.count - row, in.group - row % in.group));
    multiply_tile<kFormat>(count, half, in, row, sums + row * kHalf);
  }
}

// Unpacks sub-blocks begin..end-1 of half of a panel.
template <Format kFormat>
[[gnu::noinline]] void unpack(const char *half, std::int64_t begin, std::int64_t end, Int8Unpacked *to) {
  for (std::int64_t s = begin; s < end; ++s, ++to) {
    const Int8Stored<kFormat> weights = sub_block<kFormat>(half, s);
    for (int v = 0; v < kInt8Vectors; ++v) {
      const int g = v * kLanes / 16, n = v * kLanes;
      WEFT_UNROLL for (int c = 0; c < 8; ++c) store_vector(to->codes[g][c] + n % 16 * 4, weights.codes(v, c));
      const Int8Scale scale = weights.scale(v);
      store_vector(to->scales + n, scale.scale);
      if constexpr (weights.kKind == Int8Kind::kOffset) store_vector(to->pairs[0] + n, scale.offsets);
      if constexpr (weights.kKind == Int8Kind::kMins) store_vector(to->mins + n, scale.min);
      if constexpr (weights.kKind == Int8Kind::kOf16) {
        for (int k = 0; k < 2; ++k) store_vector(to->pairs[k] + n, scale.of_16[k]);
      }
    }
  }
}

// The floats of unpacked weights, and of sums for half of a panel.
std::int64_t int8_scratch(std::int64_t rows, std::int64_t) {
  constexpr std::int64_t kUnpacked = kUnpackedSubs * sizeof(Int8Unpacked) / sizeof(float);
  return kUnpacked + ceil_div(rows, kInt8Group) * kInt8Group * kHalf;
}

// Adds the products of kRows rows with `count` unpacked sub-blocks to their sums [kRows, 32]. `x` is their group from
// these inputs on, `row` their place in it.
template <class Weights, int kRows>
[[gnu::noinline]] void add_tile(const Int8Unpacked *weights, std::int64_t count, const char *x, std::int64_t group,
                                std::int64_t row, float *to) {
  Floats sums[kInt8Vectors][kRows];
  WEFT_UNROLL_VECTORS for (int v = 0; v < kInt8Vectors; ++v) WEFT_UNROLL for (int m = 0; m < kRows; ++m) sums[v][m] =
      floats_at(to + m * kHalf + v * kLanes);
  for (std::int64_t s = 0; s < count; ++s, x += group * kInt8RowBytes)
    add_products<Weights, kRows>(Weights{weights[s]}, x, group, row, sums);
  store_sums<kRows>(sums, to);
}

template <class Weights, int kRows = kTileInt8Rows>
WEFT_INLINE void add_tile(std::int64_t rows, const Int8Unpacked *weights, std::int64_t count, const char *x,
                          std::int64_t group, std::int64_t row, float *to) {
  if (rows == kRows) return add_tile<Weights, kRows>(weights, count, x, group, row, to);
  if constexpr (kRows > 1) add_tile<Weights, kRows - 1>(rows, weights, count, x, group, row, to);
}

// Multiplies rows by half of a panel: some inputs at a time are unpacked, and then all rows multiply them. `sums`
// [rows, 32] receives the sums.
template <Format kFormat>
void multiply_many(const char *half, const Rows &in, float *sums, Int8Unpacked *unpacked) {
  using Weights = Int8Ready<shared_max_code(kFormat), int8_kind(kFormat)>;
  std::fill_n(sums, in.count * kHalf, 0.0f);
  const std::int64_t blocks = int8_blocks(in.width);
  for (std::int64_t begin = 0; begin < blocks; begin += kUnpackedSubs) {
    const std::int64_t end = std::min(begin + kUnpackedSubs, blocks);
    unpack<kFormat>(half, begin, end, unpacked);
    for (std::int64_t row = 0, count; row < in.count; row += count) {
      count = tile_rows(std::min(in.count - row, in.group - row % in.group));
      const char *x = in.prepared + row / in.group * in.group_bytes + begin * in.group * kInt8RowBytes;
      add_tile<Weights>(count, unpacked, end - begin, x, in.group, row % in.group, sums + row * kHalf);
    }
  }
}

// Multiplies prepared rows by one panel, half by half.
template <Format kFormat, class Multiply>
WEFT_INLINE void times_halves(const Rows &in, const void *panel, float *scratch, const Epilogue &out,
                              Multiply &&multiply) {
  constexpr Block kBlock = block_of(kFormat);
  const char *half = static_cast<const char *>(panel);
  auto *const unpacked = reinterpret_cast<Int8Unpacked *>(scratch);
  float *const sums = reinterpret_cast<float *>(unpacked + kUnpackedSubs);
  for (int place = 0; place < out.valid; place += kHalf) {
    multiply(half, in, sums, unpacked);
    store_half(sums, in.count, place, out);
    half += ceil_div(in.width, kBlock.inputs) * kBlock.half_bytes;
  }
}

template <Format kFormat>
void times_int8_panel(const Rows &in, const void *panel, float *scratch, const Epilogue &out) {
  times_halves<kFormat>(in, panel, scratch, out,
                        [](const char *half, const Rows &rows, float *sums, Int8Unpacked *unpacked) {
                          if constexpr (is_slow_to_unpack(kFormat)) {
                            if (rows.count > kTileInt8Rows) return multiply_many<kFormat>(half, rows, sums, unpacked);
                          }
                          multiply_rows<kFormat>(half, rows, 0, sums);
                        });
}

#endif

constexpr std::int64_t kInt8Speed = WEFT_TARGET == 512 ? 2 : 1;

template <Format kFormat>
constexpr PanelKernel int8_kernel() {
  if constexpr (int8_format(kFormat).max_code > 0) return {times_int8_panel<kFormat>, int8_scratch, kInt8Speed};
  return {};
}

template <int... kFormats>
constexpr Int8Kernels int8_kernels(std::integer_sequence<int, kFormats...>) {
  return {{int8_kernel<static_cast<Format>(kFormats)>()...}, {kInt8Group, kInt8Group, int8_bytes, round_rows}};
}

constexpr Int8Kernels kInt8Kernels = int8_kernels(std::make_integer_sequence<int, kNumFormats>());

#undef WEFT_UNROLL_VECTORS
