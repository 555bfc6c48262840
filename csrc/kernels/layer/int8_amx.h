// Products of quantised weights with int8 rows by AMX. int8.cpp includes this once, inside a namespace and a target
// region for AMX, so there is no include guard.
//
// A tile multiplies up to 16 rows by 16 outputs and 32 inputs (16 for Q6_K), and its integers are those of VNNI. So the
// results have the same bits. Vectors scale the integers while tiles multiply later inputs: what one of the two has
// just stored is slow to load for the other.

constexpr std::int64_t kMinTileRows = kTileInt8Rows + 1;  // fewer are faster by vectors
constexpr int kLag = 3, kRing = 4;                        // products between a tile and its scaling; those kept

// The tiles 0 and 1 are sums, 4 and 5 hold rows, 6 and 7 hold weights.
WEFT_INLINE void shape_tiles(std::int64_t rows, int parts) {
  alignas(64) TileShapes shapes;
  const auto set = [&](int tile, std::int64_t count, int bytes) {
    shapes.rows[tile] = static_cast<std::uint8_t>(count), shapes.bytes[tile] = static_cast<std::uint16_t>(bytes);
  };
  for (const int pair : {0, 1}) {
    set(pair, rows, 64);
    set(4 + pair, rows, 32 / parts);
    set(6 + pair, 8 / parts, 64);
  }
  finish_writes();
  _tile_loadconfig(&shapes);
}

// Multiplies rows by the weights of 16 outputs: by all 32 inputs, or by the first and the last 16 of them.
template <int kParts>
WEFT_INLINE void multiply_integers(const char *x, const std::uint8_t (*codes)[64], std::int32_t (*products)[256]) {
  _tile_loadd(4, x, kInt8Inputs);
  _tile_loadd(6, codes, 64);
  _tile_zero(0);
  _tile_dpbsud(0, 4, 6);
  _tile_stored(0, products, 64);
  if constexpr (kParts == 2) {
    _tile_loadd(5, x + 16, kInt8Inputs);
    _tile_loadd(7, codes + 4, 64);
    _tile_zero(1);
    _tile_dpbsud(1, 5, 7);
    _tile_stored(1, products + 1, 64);
  }
}

// Adds the products of a group of kRows rows with `count` unpacked sub-blocks to their sums [kRows, 32]. `x` is the
// group from these inputs on.
template <class Weights, int kRows>
[[gnu::noinline]] void add_group(const Int8Unpacked *weights, std::int64_t count, const char *x, float *to) {
  constexpr bool kOf16 = Weights::kKind == Int8Kind::kOf16;
  constexpr int kParts = kOf16 ? 2 : 1;
  constexpr std::int64_t kStep = kRows * kInt8RowBytes;
  alignas(64) std::int32_t products[kRing][kParts][256];
  const auto multiply = [&](std::int64_t step) __attribute__((always_inline)) {
    const std::int64_t g = step / count, s = step - g * count;
    multiply_integers<kParts>(x + s * kStep, weights[s].codes[g], products[step % kRing]);
  };
  const std::int64_t steps = 2 * count;
  finish_writes();
  for (std::int64_t step = 0; step < std::min<std::int64_t>(kLag, steps); ++step) multiply(step);
  for (int g = 0; g < 2; ++g) {
    Lanes sums[kRows];
    WEFT_UNROLL for (int m = 0; m < kRows; ++m) sums[m] = floats_at(to + m * kHalf + g * kLanes);
    for (std::int64_t s = 0; s < count; ++s) {
      const std::int64_t step = g * count + s;
      if (step + kLag < steps) multiply(step + kLag);
      finish_writes();
      const Int8Scale scale = Weights{weights[s]}.scale(g);
      const char *block = x + s * kStep;
      const auto product = [&](int k, int m) __attribute__((always_inline)) {
        return words_at(reinterpret_cast<const char *>(products[step % kRing][k] + 16 * m));
      };
      WEFT_UNROLL for (int m = 0; m < kRows; ++m) {
        const Words minus = word_of(block + int8_minus_sums_at(kRows, 0), m);
        Lanes total;
        if constexpr (kOf16) {
          total =
              scaled_halves(_mm512_add_epi32(product(0, m), pairs_times(all_words(kOffsetOf16), minus)),
                            _mm512_add_epi32(product(1, m), pairs_times(all_words(kOffsetOf16 << 16), minus)), scale);
        } else if constexpr (Weights::kKind == Int8Kind::kOffset) {
          total = converted(_mm512_add_epi32(product(0, m), pairs_times(scale.offsets, minus)));
        } else {
          total = converted(product(0, m));
        }
        add_scaled<Weights>(total, block, kRows, m, scale, sums[m]);
      }
    }
    WEFT_UNROLL for (int m = 0; m < kRows; ++m) store_vector(to + m * kHalf + g * kLanes, sums[m]);
  }
}

template <class Weights, int kRows = kInt8Group>
WEFT_INLINE void add_group(std::int64_t rows, const Int8Unpacked *weights, std::int64_t count, const char *x,
                           float *to) {
  if (rows == kRows) return add_group<Weights, kRows>(weights, count, x, to);
  if constexpr (kRows > kMinTileRows) add_group<Weights, kRows - 1>(rows, weights, count, x, to);
}

// Multiplies rows by half of a panel. A last group with few rows is faster by vectors. Another one has its missing rows
// in memory too, and nothing reads their sums.
template <Format kFormat>
void multiply_groups(const char *half, int place, const Rows &in, Int8Unpacked *unpacked, float *sums,
                     const Epilogue &out) {
  using Weights = Int8Ready<shared_max_code(kFormat), int8_kind(kFormat)>;
  const std::int64_t last = in.count % in.group;
  const std::int64_t count = in.count - (last < kMinTileRows ? last : 0);  // rows of all tiles
  if (count == 0) return multiply_rows<kFormat>(half, place, in, 0, sums, out);
  std::fill_n(sums, ceil_div(count, in.group) * in.group * kHalf, 0.0f);
  shape_tiles(in.group, int8_kind(kFormat) == Int8Kind::kOf16 ? 2 : 1);
  const std::int64_t blocks = int8_blocks(in.width);
  for (std::int64_t begin = 0; begin < blocks; begin += kUnpackedSubs) {
    const std::int64_t end = std::min(begin + kUnpackedSubs, blocks);
    unpack<kFormat>(half, begin, end, unpacked);
    for (std::int64_t row = 0; row < count; row += in.group) {
      const char *x = in.prepared + row / in.group * in.group_bytes + begin * in.group * kInt8RowBytes;
      add_group<Weights>(in.group, unpacked, end - begin, x, sums + row * kHalf);
      if (end == blocks) store_half(sums + row * kHalf, row, std::min(in.group, in.count - row), place, out);
    }
  }
  _tile_release();
  multiply_rows<kFormat>(half, place, in, count, sums, out);
}

template <Format kFormat>
void times_int8_panel(const Rows &in, const void *panel, float *scratch, const Epilogue &out) {
  if (in.group < kMinTileRows) return vnni::times_int8_panel<kFormat>(in, panel, scratch, out);
  times_halves<kFormat>(in, panel, scratch, out, multiply_groups<kFormat>);
}

template <Format kFormat>
constexpr PanelKernel int8_kernel() {
  if constexpr (int8_format(kFormat).max_code > 0) return {times_int8_panel<kFormat>, vnni::int8_scratch, 3};
  return {};
}

template <int... kFormats>
constexpr Int8Kernels int8_kernels(std::integer_sequence<int, kFormats...>) {
  return {{int8_kernel<static_cast<Format>(kFormats)>()...}, vnni::kInt8Kernels.rows};
}

constexpr Int8Kernels kInt8Kernels = int8_kernels(std::make_integer_sequence<int, kNumFormats>());
