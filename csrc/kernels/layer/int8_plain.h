// Products of quantised weights with int8 rows without vector instructions (int8_kernels.h). int8.cpp includes this in
// a namespace. So there is no include guard.

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
