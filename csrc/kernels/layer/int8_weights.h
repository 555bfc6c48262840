// The weights of half of a panel for 32 inputs, in vectors of words: read from the panel, or from unpacked weights.
// int8.cpp includes this after one of the int8_vectors_*.h, in a namespace. So there is no include guard.

constexpr int kInt8Vectors = kHalf / kLanes;  // of the outputs of half of a panel

// Returns kLanes numbers of 8 bits, each in a word.
template <class T>
WEFT_INLINE Words bytes_at(const char *from) {
  return (Words)load_bytes<T>(from);
}

template <class Vector>
WEFT_INLINE void store_vector(void *to, Vector vector) {
  std::memcpy(to, &vector, sizeof vector);
}

// The scales of a vector of outputs for 32 inputs.
struct Int8Scale {
  Lanes scale, min;
  Words offsets;   // pairs of 16 bits, for the first and the last 16 inputs
  Words of_16[2];  // Q6_K: the scales of the first and the last 16 inputs
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
  WEFT_INLINE Words codes(int v, int c) const {
    constexpr HalfLayout kLayout = half_layout(kFormat);
    const int output = v * kLanes;
    if constexpr (kLayout.bits == 8) return words_at(block + word_at(kFormat, 8 * sub + c, output));
    const Words both = words_at(block + word_at(kFormat, 4 * sub + c % 4, output));
    Words codes = c < 4 ? low_bits(both) : high_bits(both);
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
      scale.scale = halves_at(at + 512 + 2 * n) * converted(bytes_at<std::uint8_t>(at + 32 * sub + n));
      scale.min = -(halves_at(at + 576 + 2 * n) * converted(bytes_at<std::uint8_t>(at + 256 + 32 * sub + n)));
    } else if constexpr (kScales == Int8Scales::kSuperOf16) {
      for (int k = 0; k < 2; ++k) scale.of_16[k] = bytes_at<std::int8_t>(at + 32 * (2 * sub + k) + n);
      scale.scale = halves_at(at + 512 + 2 * n);
    } else if constexpr (kScales == Int8Scales::kExponent) {
      const Words exponents = bytes_at<std::uint8_t>(at + n);
      const Lanes powers = as_floats(larger(shifted_left(exponents, 23), all_words(0x00400000)));
      scale.scale = nan_where_equal(exponents, all_words(255), powers * all_floats(0.5f));
    } else {
      scale.scale = as_floats(words_at(at + 4 * n));
      if constexpr (kScales == Int8Scales::kFloatAndZero) {
        const Words zeros = bytes_at<std::uint8_t>(at + 128 + n);
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

  WEFT_INLINE Words codes(int v, int c) const {
    return words_at(reinterpret_cast<const char *>(from.codes[v * kLanes / 16][c]) + v * kLanes % 16 * 4);
  }

  WEFT_INLINE Int8Scale scale(int v) const {
    const int n = v * kLanes;
    const auto pairs = [&](int k) { return reinterpret_cast<const char *>(from.pairs[k] + n); };
    Int8Scale scale;
    scale.scale = floats_at(from.scales + n);
    scale.offsets = all_words(kOffsetOf16 * 0x10001);
    if constexpr (kKind == Int8Kind::kOffset) scale.offsets = words_at(pairs(0));
    if constexpr (kKind == Int8Kind::kMins) scale.min = floats_at(from.mins + n);
    if constexpr (kKind == Int8Kind::kOf16) scale.of_16[0] = words_at(pairs(0)), scale.of_16[1] = words_at(pairs(1));
    return scale;
  }
};

WEFT_INLINE Words word_of(const char *x, int c) { return all_words(read_as<std::int32_t>(x + 4 * c)); }

// Adds the product of 32 inputs of row `row`, `total` before scaling, to its sum. `x` is the row's group.
template <class Weights>
WEFT_INLINE void add_scaled(Lanes total, const char *x, std::int64_t group, std::int64_t row, const Int8Scale &scale,
                            Lanes &sum) {
  sum = fused(total * all_floats(read_as<float>(x + int8_scale_at(group, row))), scale.scale, sum);
  if constexpr (Weights::kKind == Int8Kind::kMins)
    sum = fused(scale.min, all_floats(read_as<float>(x + int8_scaled_sum_at(group, row))), sum);
}
