// The inner loops of linear.cpp with AMX, for bfloat16 weights. linear.cpp includes this once, inside a namespace and a
// target region for AMX, so there is no include guard.
//
// AMX multiplies bfloat16 exactly and adds in float32. An activation is rounded to bfloat16, or split into two bfloat16
// parts: their sum differs from the activation by at most 2^-17 of it; rounding the weights to bfloat16 lost 2^-8. A
// tile holds all parts of a group of rows, and the sums of a row's parts are added at the end. Rows of a tile do not
// influence each other, so a row's result does not depend on its batch.

constexpr std::int64_t kMaxRowsOfTile = 16, kGroupSums = kMaxRowsOfTile * kPanel;
constexpr std::int64_t kBlock = 32, kTile = 512;             // inputs of a tile; its 16-bit elements
constexpr std::int64_t kTilesOfBlock = kPanel / 16 * kTile;  // 16-bit elements of a panel for one block of inputs
constexpr std::int64_t kDepthBlocks = 6;  // blocks of weights that stay in the cache while groups of rows read them
constexpr std::int64_t kLine = 64, kBlockLines = 2 * kTilesOfBlock / kLine, kPrefetchDistance = 4096;  // bytes

inline std::int64_t blocks_of(std::int64_t inputs) { return ceil_div(inputs, kBlock); }

// The bytes of a split group; its layout is [blocks, kParts, group, kBlock] in 16 bits.
template <int kParts>
std::int64_t split_bytes(std::int64_t group, std::int64_t inputs) {
  return blocks_of(inputs) * kParts * group * kBlock * 2;
}

// Returns `x` rounded to bfloat16 and leaves the remainder in `x`: 0 for an infinity, where inf - inf would be NaN.
WEFT_INLINE __m256i take_part(__m512 &x) {
  const __m256bh part = _mm512_cvtneps_pbh(x);
  const __m512 whole = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)part), 16));
  constexpr int kInfinity = 0x18;
  x = _mm512_maskz_sub_ps(static_cast<__mmask16>(~_mm512_fpclass_ps_mask(whole, kInfinity)), x, whole);
  return (__m256i)part;
}

// Splits groups begin..end-1 of the rows into bfloat16 parts, and writes each group to its place in `split`. Rows and
// inputs that a tile lacks are zeros.
template <int kParts>
void split_rows(const Rows &rows, std::int64_t begin, std::int64_t end, char *split) {
  const std::int64_t group = rows.group, part = group * kBlock;
  for (std::int64_t g = begin; g < end; ++g) {
    auto *to = reinterpret_cast<std::uint16_t *>(split + g * split_bytes<kParts>(group, rows.width));
    const std::int64_t valid = std::min(group, rows.count - g * group);
    for (std::int64_t b = 0; b < blocks_of(rows.width); ++b, to += kParts * part) {
      for (std::int64_t r = 0; r < group; ++r) {
        const std::int64_t left = r < valid ? std::min(kBlock, rows.width - b * kBlock) : 0;
        for (std::int64_t half = 0; half < kBlock; half += kLanes) {
          const std::int64_t count = std::min<std::int64_t>(std::max<std::int64_t>(left - half, 0), kLanes);
          const float *from = rows.x + (g * group + r) * rows.stride + b * kBlock + half;
          __m512 values = _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
          for (int p = 0; p < kParts; ++p)
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + p * part + r * kBlock + half), take_part(values));
        }
      }
    }
  }
}

// Configures the tile registers: 0 to 3 are sums, 4 and 5 hold `rows` rows of parts, 6 and 7 hold weights.
WEFT_INLINE void shape_tiles(std::int64_t rows) {
  alignas(64) TileShapes shapes;
  for (int t = 0; t < 8; ++t) {
    shapes.bytes[t] = 64;
    shapes.rows[t] = static_cast<std::uint8_t>(t < 6 ? rows : 16);
  }
  finish_writes();
  _tile_loadconfig(&shapes);
}

constexpr int kSumBytes = kPanel * sizeof(float);

WEFT_INLINE void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

WEFT_INLINE void load_sums(const float *from) {
  _tile_loadd(0, from, kSumBytes);
  _tile_loadd(1, from + 16, kSumBytes);
  _tile_loadd(2, from + 32, kSumBytes);
  _tile_loadd(3, from + 48, kSumBytes);
}

WEFT_INLINE void store_sums(float *to) {
  _tile_stored(0, to, kSumBytes);
  _tile_stored(1, to + 16, kSumBytes);
  _tile_stored(2, to + 32, kSumBytes);
  _tile_stored(3, to + 48, kSumBytes);
}

// Multiplies `blocks` blocks of inputs of one group by their weights, and adds the products to the sums in tiles 0
// to 3. A block of inputs has `step` 16-bit elements. Each block prefetches the next `lines` cache lines from `next`
// on, which hold later weights.
WEFT_INLINE void add_blocks(const std::uint16_t *split, std::int64_t step, std::int64_t blocks,
                            const std::uint16_t *weights, const char *next, std::int64_t lines) {
  for (std::int64_t b = 0; b < blocks; ++b, split += step, weights += kTilesOfBlock) {
    for (std::int64_t line = 0; line < lines; ++line, next += kLine) __builtin_prefetch(next);
    _tile_loadd(4, split, 64);
    _tile_loadd(6, weights, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weights + kTile, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, weights + 2 * kTile, 64);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, weights + 3 * kTile, 64);
    _tile_dpbf16ps(3, 4, 7);
  }
}

// Multiplies two groups by half of a panel's outputs, over all blocks of inputs. Each group has two of the four sum
// tiles, so each tile of weights is loaded once for both groups. `step` is as in add_blocks.
WEFT_INLINE void times_half(const Rows &in, std::int64_t step, const std::uint16_t *weights, float *sums) {
  const auto *first = reinterpret_cast<const std::uint16_t *>(in.prepared);
  const auto *second = reinterpret_cast<const std::uint16_t *>(in.prepared + in.group_bytes);
  zero_sums();
  for (std::int64_t b = 0; b < blocks_of(in.width); ++b, weights += kTilesOfBlock) {
    const char *next = reinterpret_cast<const char *>(weights) + kPrefetchDistance;
    for (std::int64_t line = 0; line < kBlockLines / 2; ++line) __builtin_prefetch(next + line * kLine);
    _tile_loadd(4, first, 64);
    _tile_loadd(6, weights, 64);
    _tile_loadd(7, weights + kTile, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, second, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    first += step, second += step;
  }
  _tile_stored(0, sums, kSumBytes);
  _tile_stored(1, sums + kLanes, kSumBytes);
  _tile_stored(2, sums + kGroupSums, kSumBytes);
  _tile_stored(3, sums + kGroupSums + kLanes, kSumBytes);
}

// Multiplies split rows by one panel and applies the epilogue. `sums` is scratch memory, kGroupSums floats for each
// group.
template <int kParts>
void times_panel(const Rows &in, const void *panel, float *sums, const Epilogue &out) {
  const auto *weights = static_cast<const std::uint16_t *>(panel);
  const std::int64_t groups = groups_of(in), blocks = blocks_of(in.width), step = kParts * in.group * kBlock;
  const auto *rows = reinterpret_cast<const std::uint16_t *>(in.prepared);
  shape_tiles(kParts * in.group);
  if (groups == 1) {
    zero_sums();
    add_blocks(rows, step, blocks, weights, reinterpret_cast<const char *>(weights) + kPrefetchDistance, kBlockLines);
    store_sums(sums);
  } else if (groups == 2) {
    times_half(in, step, weights, sums);
    times_half(in, step, weights + 2 * kTile, sums + 2 * kLanes);
  }
  for (std::int64_t begin = 0; groups > 2 && begin < blocks; begin += kDepthBlocks) {
    const std::int64_t count = std::min(kDepthBlocks, blocks - begin), share = ceil_div(kBlockLines, groups);
    const std::uint16_t *split = rows + begin * step;
    const std::uint16_t *those = weights + begin * kTilesOfBlock, *next = those + count * kTilesOfBlock;
    for (std::int64_t g = 0; g < groups; ++g, split += in.group_bytes / 2) {
      begin == 0 ? zero_sums() : load_sums(sums + g * kGroupSums);
      const std::int64_t done = g * share, lines = std::max<std::int64_t>(std::min(share, kBlockLines - done), 0);
      add_blocks(split, step, count, those, reinterpret_cast<const char *>(next) + done * count * kLine, lines);
      store_sums(sums + g * kGroupSums);
    }
  }
  _tile_release();
  for (std::int64_t r = 0; r < in.count; ++r) {
    const float *parts = sums + r / in.group * kGroupSums + r % in.group * kPanel;
    for (std::int64_t n = 0; n < kPanel; n += kLanes) {
      Lanes sum = load(parts + n);
      if (kParts == 2) sum += load(parts + in.group * kPanel + n);
      store_epilogue(out, r, n, sum);
    }
  }
}

template <int kParts>
std::int64_t scratch(std::int64_t rows, std::int64_t) {
  return ceil_div(rows, kMaxRowsOfTile / kParts) * kGroupSums;
}

template <int kParts>
constexpr RoundedKernels kKernels = {{times_panel<kParts>, scratch<kParts>, 4 / kParts},
                                     {kMaxRowsOfTile / kParts, 48, split_bytes<kParts>, split_rows<kParts>}};
constexpr const RoundedKernels &kBFloat16 = kKernels<1>, &kTwoBFloat16 = kKernels<2>;
