// Products of quantised weights with int8 rows by vectors (int8_kernels.h): some rows by half of a panel at a time. A
// set of vectors (int8_vectors_*.h) and products of 32 inputs in it (int8_products_*.h) come before this. int8.cpp
// includes it once for each set, each time in another namespace. So there is no include guard.

constexpr std::int64_t kAhead = 16384;  // bytes from the weights that are read to those that are prefetched

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

// Applies the epilogue to the sums [count, 32] of half of a panel, for rows from `row` on.
void store_half(const float *sums, std::int64_t row, std::int64_t count, int place, const Epilogue &out) {
  for (const std::int64_t end = row + count; row < end; ++row, sums += kHalf)
    for (int n = 0; n < kHalf; n += kLanes) store_epilogue(out, row, place + n, load(sums + n));
}

template <int kRows>
WEFT_INLINE void store_sums(const Lanes (&sums)[kInt8Vectors][kRows], float *to) {
  WEFT_UNROLL_VECTORS for (int v = 0; v < kInt8Vectors; ++v) WEFT_UNROLL for (int m = 0; m < kRows; ++m)
      store_vector(to + m * kHalf + v * kLanes, sums[v][m]);
}

// Multiplies kRows rows from `row` on, of one group, by half of a panel. `to` [kRows, 32] receives the sums.
template <Format kFormat, int kRows>
[[gnu::noinline]] void multiply_tile(const char *half, const Rows &in, std::int64_t row, float *to) {
  Lanes sums[kInt8Vectors][kRows] = {};
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

// Multiplies the rows from `row` on, the first of a group, by half of a panel, and stores the results. `sums` has
// memory for a tile. The first tile reads the weights from memory, the others from the cache.
template <Format kFormat>
void multiply_rows(const char *half, int place, const Rows &in, std::int64_t row, float *sums, const Epilogue &out) {
  for (std::int64_t count; row < in.count; row += count) {
    count = tile_rows(std::min(in.count - row, in.group - row % in.group));
    multiply_tile<kFormat>(count, half, in, row, sums);
    store_half(sums, row, count, place, out);
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
  Lanes sums[kInt8Vectors][kRows];
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

// Multiplies rows by half of a panel, and stores the results: some inputs at a time are unpacked, and then all rows
// multiply them. `sums` has memory for the sums of all rows.
template <Format kFormat>
void multiply_many(const char *half, int place, const Rows &in, Int8Unpacked *unpacked, float *sums,
                   const Epilogue &out) {
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
      if (end == blocks) store_half(sums + row * kHalf, row, count, place, out);
    }
  }
}

// Multiplies prepared rows by one panel, half by half: calls multiply(half, place, in, unpacked, sums, out), where
// `place` is that of the half's first output.
template <Format kFormat, class Multiply>
WEFT_INLINE void times_halves(const Rows &in, const void *panel, float *scratch, const Epilogue &out,
                              Multiply &&multiply) {
  constexpr Block kBlock = block_of(kFormat);
  const char *half = static_cast<const char *>(panel);
  auto *const unpacked = reinterpret_cast<Int8Unpacked *>(scratch);
  float *const sums = reinterpret_cast<float *>(unpacked + kUnpackedSubs);
  for (int place = 0; place < out.valid; place += kHalf) {
    multiply(half, place, in, unpacked, sums, out);
    half += ceil_div(in.width, kBlock.inputs) * kBlock.half_bytes;
  }
}

template <Format kFormat>
void times_int8_panel(const Rows &in, const void *panel, float *scratch, const Epilogue &out) {
  if constexpr (is_slow_to_unpack(kFormat)) {
    if (in.count > kTileInt8Rows) return times_halves<kFormat>(in, panel, scratch, out, multiply_many<kFormat>);
  }
  times_halves<kFormat>(in, panel, scratch, out,
                        [](const char *half, int place, const Rows &rows, Int8Unpacked *, float *sums,
                           const Epilogue &to) { multiply_rows<kFormat>(half, place, rows, 0, sums, to); });
}

#undef WEFT_UNROLL_VECTORS
