// Products of float32 rows with quantised panels (formats.h), a part of tiles.h: some inputs of a panel are widened to
// float32, and then all tiles of rows multiply them. Widening gives the numbers of blocks.cpp, so a product has the
// bits of one with the widened matrix.

constexpr std::int64_t kWidenedInputs = 256;  // at once; a multiple of all blocks' inputs

WEFT_INLINE Lanes to_floats(Ints numbers) { return __builtin_convertvector(numbers, Lanes); }

WEFT_INLINE Ints load_ints(const char *from) {
  Ints ints;
  std::memcpy(&ints, from, sizeof ints);
  return ints;
}

// Returns the elements of a table of 16 at `codes`, in 0..15.
WEFT_INLINE Lanes look_up(const float *table, Ints codes) {
#if WEFT_TARGET == 512
  return _mm512_permutexvar_ps((__m512i)codes, load(table));
#elif WEFT_TARGET == 256
  const __m256 low = _mm256_permutevar8x32_ps(load(table), (__m256i)codes),
               high = _mm256_permutevar8x32_ps(load(table + 8), (__m256i)codes);
  return _mm256_blendv_ps(low, high, (__m256)(codes << 28));
#else
  Lanes lanes;
  for (int k = 0; k < kLanes; ++k) lanes[k] = table[codes[k]];
  return lanes;
#endif
}

// Returns the bits of 4 inputs in a plane of 16 outputs, for kLanes of them from `lane` on: those of each in its lowest
// bits.
WEFT_INLINE Ints load_plane(const char *plane, int lane) {
  std::int32_t word;
  std::memcpy(&word, plane + lane / 8 * 4, sizeof word);
#if WEFT_TARGET == 512
  std::int32_t next;
  std::memcpy(&next, plane + 4, sizeof next);
  const __m512i words = _mm512_inserti64x4(_mm512_set1_epi32(word), _mm256_set1_epi32(next), 1);
  const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  return (Ints)_mm512_srlv_epi32(words, shifts);
#else
  Ints shifts;
  for (int k = 0; k < kLanes; ++k) shifts[k] = (lane + k) % 8 * 4;
  return (word - Ints{}) >> shifts;
#endif
}

WEFT_INLINE Lanes load_halves(const char *from) { return widened(reinterpret_cast<const Half *>(from)); }
WEFT_INLINE Lanes load_floats(const char *from) { return load(reinterpret_cast<const float *>(from)); }

// Numbers of E4M3, without a product of subnormal numbers, which some processors are slow with.
WEFT_INLINE Lanes widen_e4m3(Ints codes) {
  const Ints magnitude = codes & 0x7f, is_small = magnitude < 8;
  const Ints bits = (magnitude << 20) + (120 << 23) + (is_small & (1 << 23));
  const Ints offset = is_small & 0x3c800000;  // 2^-6: small codes are the fractions of a number that is larger by it
  const Lanes value = (Lanes)bits - (Lanes)offset;
  const Ints special = (magnitude == 0x7f) & 0x7fc00000;
  return (Lanes)((Ints)value | special | (codes & 0x80) << 24);
}

// Widens sub-block `sub` of a half's block, for kLanes outputs from `lane` on, to rows of kPanel floats at `out`.
template <Format kFormat>
WEFT_INLINE void widen_sub(const char *half, std::int64_t sub, std::int64_t lane, float *out) {
  constexpr HalfLayout kLayout = half_layout(kFormat);
  constexpr bool kIsK = kFormat == Format::kQ4_K || kFormat == Format::kQ5_K;
  constexpr bool kHasMin = kFormat == Format::kQ4_1 || kFormat == Format::kQ5_1;
  constexpr bool kIsInt4 = kFormat == Format::kInt4_32 || kFormat == Format::kInt4_64 || kFormat == Format::kInt4_128;
  constexpr bool kIsQ6 = kFormat == Format::kQ6_K;
  // The number of a code is scales[0 or 1] * (code - zero) + min, where some formats lack some of these.
  const char *scales = half + scales_at(kFormat);
  Lanes factors[2] = {}, min = {}, zero = {};
  if constexpr (kIsK) {
    factors[0] =
        load_halves(scales + 512 + 2 * lane) * to_floats(load_bytes<std::uint8_t>(scales + kHalf * sub + lane));
    min = -(load_halves(scales + 576 + 2 * lane) *
            to_floats(load_bytes<std::uint8_t>(scales + 256 + kHalf * sub + lane)));
  } else if constexpr (kIsQ6) {
    const Lanes d = load_halves(scales + 512 + 2 * lane);
    for (int h = 0; h < 2; ++h)
      factors[h] = d * to_floats(load_bytes<std::int8_t>(scales + kHalf * (2 * sub + h) + lane));
  } else if constexpr (kFormat == Format::kMXFP4) {
    const Ints exponent = load_bytes<std::uint8_t>(scales + lane);
    const Ints special = exponent == 255, is_smallest = exponent == 0;
    factors[0] = (Lanes)(exponent << 23 | (special & 0x7fc00000) | (is_smallest & 0x00400000));
  } else if constexpr (kLayout.runs[0].size == 4) {
    factors[0] = load_floats(scales + 4 * lane);
    if constexpr (kIsInt4) zero = to_floats(load_bytes<std::uint8_t>(scales + 128 + lane));
  } else {
    factors[0] = load_halves(scales + 2 * lane);
    if constexpr (kHasMin) min = load_halves(scales + 64 + 2 * lane);
  }
  const auto write = [&](int input, Ints code) {
    Lanes number;
    if constexpr (kFormat == Format::kIQ4_NL)
      number = look_up(kIQ4Codes, code);
    else if constexpr (kFormat == Format::kMXFP4)
      number = look_up(kMXFP4Codes, code);
    else if constexpr (kFormat == Format::kFP8)
      number = widen_e4m3(code);
    else if constexpr (kIsK || kHasMin)
      number = to_floats(code);
    else if constexpr (kIsInt4)
      number = to_floats(code) - zero;
    else
      number = to_floats(code - (kIsQ6 ? 32 : kFormat == Format::kQ5_0 ? 16 : kFormat == Format::kQ4_0 ? 8 : 128));
    number *= factors[kIsQ6 ? input / 16 : 0];
    if constexpr (kIsK || kHasMin) number += min;
    std::memcpy(out + input * kPanel, &number, sizeof number);
  };
  if constexpr (kFormat == Format::kFP8) {
    for (int i = 0; i < kSub; ++i) write(i, load_bytes<std::uint8_t>(half + (kSub * sub + i) * kHalf + lane));
    return;
  }
  constexpr int kWords = kSub * kLayout.bits / 32;
  const char *words = half + word_at(kFormat, kWords * sub, lane);
  const auto high_bits = [&](int quad) {  // of inputs 4 quad to 4 quad + 3: those of each in a byte
    Ints planes[2] = {};
    for (int p = 0; p < kLayout.planes; ++p)
      planes[p] = load_plane(half + plane_at(kFormat, sub, lane, p) + 8 * quad, static_cast<int>(lane % 16));
    return std::array<Ints, 2>{planes[0], planes[1]};
  };
  for (int c = 0; c < kWords; ++c) {
    const Ints word = load_ints(words + 64 * c);
    if constexpr (kLayout.bits == 8) {
      for (int i = 0; i < 4; ++i) write(4 * c + i, word >> 8 * i & 255);
    } else {
      for (int part = 0; part < 2; ++part) {
        const auto high = high_bits(4 * part + c);
        for (int i = 0; i < 4; ++i) {
          Ints code = word >> (8 * i + 4 * part) & 15;
          for (int p = 0; p < kLayout.planes; ++p) code |= (high[static_cast<std::size_t>(p)] >> i & 1) << (4 + p);
          write(16 * part + 4 * c + i, code);
        }
      }
    }
  }
}

// Widens `inputs` inputs of a panel, a multiple of a block's or all the rest, from `begin` on.
template <Format kFormat>
void widen_panel(const char *panel, std::int64_t half_bytes, std::int64_t begin, std::int64_t inputs, float *to) {
  constexpr Block kBlock = block_of(kFormat);
  for (std::int64_t half = 0; half < kPanel; half += kHalf, panel += half_bytes) {
    const char *block = panel + begin / kBlock.inputs * kBlock.half_bytes;
    for (std::int64_t i = 0; i < inputs; i += kBlock.inputs, block += kBlock.half_bytes) {
      for (std::int64_t s = 0; s < kBlock.inputs / kSub; ++s) {
        for (std::int64_t lane = 0; lane < kHalf; lane += kLanes)
          widen_sub<kFormat>(block, s, lane, to + (i + s * kSub) * kPanel + half + lane);
      }
    }
  }
}

// Multiplies all rows by a panel. `partial` has memory for their sums and kWidenedInputs widened inputs.
template <Format kFormat>
void times_blocks(const Rows &in, const void *weights, float *partial, const Epilogue &out) {
  const auto *panel = static_cast<const char *>(weights);
  const std::int64_t half_bytes = panel_bytes(kFormat, Activations::kFloat32, in.width) / 2;
  const std::int64_t tiles = ceil_div(in.count, kMaxTileRows);
  float *const wide = partial + in.count * kPanel;
  for (std::int64_t begin = 0; begin < in.width; begin += kWidenedInputs) {
    const std::int64_t end = std::min(begin + kWidenedInputs, in.width);
    widen_panel<kFormat>(panel, half_bytes, begin, end - begin, wide);
    for (std::int64_t t = 0, row = 0, count; t < tiles; ++t, row += count) {
      count = ceil_div(in.count - row, tiles - t);
      tile_of<float, kMaxTileRows>(count, in, wide - begin * kPanel, row, {begin, end, nullptr, 0}, partial, out);
    }
  }
}

std::int64_t widened_scratch(std::int64_t rows, std::int64_t) { return (rows + kWidenedInputs) * kPanel; }

template <Format kFormat>
constexpr PanelKernel kBlockKernel = {times_blocks<kFormat>, widened_scratch, 1};
