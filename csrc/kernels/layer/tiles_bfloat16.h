// The inner loops of linear.cpp for bfloat16 weights and activations rounded to bfloat16. tiles.h includes this for
// each instruction set, and linear.cpp once more for AVX512-BF16, each time in another namespace. So there is no
// include guard. WEFT_PAIRS says that the instruction set multiplies pairs of bfloat16 (VDPBF16PS).
//
// A sum adds the odd input of a pair, then the even one, pair by pair: the order of VDPBF16PS in Intel's manual. That
// instruction counts numbers below 2^-126 as 0. Otherwise all instruction sets with fused multiply-adds give the same
// bits.

constexpr std::int64_t kInputsOfTile = 32, kPairs = kInputsOfTile / 2;  // in a tile of weights
constexpr std::int64_t kTileOutputs = 16, kWordsOfTile = kPairs * kTileOutputs;
constexpr std::int64_t kWordsOfBlock = kPanel / kTileOutputs * kWordsOfTile;  // a word is the weights of a pair
constexpr std::int64_t kBlockBytes = 4 * kWordsOfBlock, kLinesOfBlock = kBlockBytes / kLineBytes;
constexpr std::int64_t kBlocksAtOnce = 16;  // blocks whose weights stay in the cache while several tiles read them
constexpr std::int64_t kBytesAhead = 8192;  // of prefetching

WEFT_INLINE BFloat16 to_bfloat16(float value) {
  BFloat16 narrowed;
  narrow(value, narrowed);
  return narrowed;
}

#if WEFT_PAIRS
using Pairs = __m512i;  // the weights of a pair of inputs, for kLanes outputs
using Rounded = std::uint16_t;

WEFT_INLINE Rounded round_input(float value) { return to_bfloat16(value).bits; }

WEFT_INLINE Pairs load_pairs(const std::uint32_t *from) { return _mm512_loadu_si512(from); }

// Adds the products of a pair of inputs of kRows rows, `x_row` apart.
template <int kRows, int kVectors>
WEFT_INLINE void add_pair(const Pairs (&weights)[kVectors], const Rounded *x, Lanes (&sums)[kRows][kVectors]) {
  for (int m = 0; m < kRows; ++m) {
    std::int32_t pair;
    std::memcpy(&pair, x + m * kInputsOfTile, sizeof pair);
    const __m512i inputs = _mm512_set1_epi32(pair);
    for (int v = 0; v < kVectors; ++v)
      sums[m][v] = _mm512_dpbf16_ps(sums[m][v], (__m512bh)weights[v], (__m512bh)inputs);
  }
}
#else
typedef std::uint32_t Pairs __attribute__((vector_size(kLanes * sizeof(std::uint32_t))));
using Rounded = float;

WEFT_INLINE Rounded round_input(float value) { return widen(to_bfloat16(value)); }

WEFT_INLINE Pairs load_pairs(const std::uint32_t *from) {
  Pairs pairs;
  std::memcpy(&pairs, from, sizeof pairs);
  return pairs;
}

template <int kRows, int kVectors>
WEFT_INLINE void add_pair(const Pairs (&weights)[kVectors], const Rounded *x, Lanes (&sums)[kRows][kVectors]) {
  for (int odd = 1; odd >= 0; --odd) {
    Lanes widened[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const Pairs bits = odd ? weights[v] & 0xffff0000u : weights[v] << 16;
      std::memcpy(&widened[v], &bits, sizeof bits);
    }
    for (int m = 0; m < kRows; ++m) {
      const float input = x[m * kInputsOfTile + odd];
      for (int v = 0; v < kVectors; ++v) sums[m][v] += input * widened[v];
    }
  }
}
#endif

// The bytes of a prepared group: [blocks, group, kInputsOfTile] of Rounded.
std::int64_t rounded_bytes(std::int64_t group, std::int64_t inputs) {
  return ceil_div(inputs, kInputsOfTile) * group * kInputsOfTile * static_cast<std::int64_t>(sizeof(Rounded));
}

// Rounds groups begin..end-1 of the rows to bfloat16. Rows and inputs that a tile lacks are zeros.
void round_rows(const Rows &rows, std::int64_t begin, std::int64_t end, char *prepared) {
  for (std::int64_t g = begin; g < end; ++g) {
    auto *group = reinterpret_cast<Rounded *>(prepared + g * rows.group_bytes);
    const std::int64_t valid = std::min(rows.group, rows.count - g * rows.group);
    for (std::int64_t r = 0; r < rows.group; ++r) {
      const float *x = rows.x + (g * rows.group + r) * rows.stride;
      Rounded *to = group + r * kInputsOfTile;
      for (std::int64_t i = 0; i < rows.width; i += kInputsOfTile, to += rows.group * kInputsOfTile) {
        const std::int64_t count = r < valid ? std::min(kInputsOfTile, rows.width - i) : 0;
        if (count == kInputsOfTile) {
          for (std::int64_t k = 0; k < kInputsOfTile; ++k) to[k] = round_input(x[i + k]);
        } else {
          for (std::int64_t k = 0; k < kInputsOfTile; ++k) to[k] = k < count ? round_input(x[i + k]) : Rounded{};
        }
      }
    }
  }
}

// Multiplies the first kRows rows of a group by blocks of inputs. As `tile` in tiles.h; `depth` counts blocks, and
// prefetches `lines` cache lines for each pair of inputs.
template <int kRows>
WEFT_INLINE void rounded_tile(const Rows &in, std::int64_t group, const std::uint32_t *panel, const Depth &depth,
                              float *partial, const Epilogue &out) {
  constexpr int kVectors = vectors_of(kRows), kWidth = kVectors * kLanes;
  const std::int64_t step = in.group * kInputsOfTile, row = group * in.group;
  const auto *prepared = reinterpret_cast<const Rounded *>(in.prepared + group * in.group_bytes);
  const bool is_last = depth.end * kInputsOfTile >= in.width;
  partial += row * kPanel;
  for (int first = 0; first < kPanel; first += kWidth) {
    const Rounded *x = prepared + depth.begin * step;
    const std::uint32_t *w = panel + depth.begin * kWordsOfBlock;
    const char *share = depth.share;
    Lanes sums[kRows][kVectors] = {};
    if (depth.begin > 0) {
      for (int m = 0; m < kRows; ++m)
        for (int v = 0; v < kVectors; ++v) sums[m][v] = load(partial + m * kPanel + first + v * kLanes);
    }
    for (std::int64_t b = depth.begin; b < depth.end; ++b, w += kWordsOfBlock, x += step) {
      const char *ahead = reinterpret_cast<const char *>(w + first * kPairs) + kBytesAhead;
      for (std::int64_t p = 0; p < kPairs; ++p) {
        if (share) {
          for (int line = 0; line < depth.lines; ++line, share += kLineBytes) __builtin_prefetch(share, 0, 2);
        }
        for (int line = 0; line < kWidth / kTileOutputs; ++line, ahead += kLineBytes) __builtin_prefetch(ahead);
        Pairs weights[kVectors];
        for (int v = 0; v < kVectors; ++v) {
          const int n = first + v * kLanes;
          weights[v] = load_pairs(w + n / kTileOutputs * kWordsOfTile + p * kTileOutputs + n % kTileOutputs);
        }
        add_pair<kRows, kVectors>(weights, x + 2 * p, sums);
      }
    }
    for (int m = 0; m < kRows; ++m) {
      for (int v = 0; v < kVectors; ++v) {
        const int place = first + v * kLanes;
        if (is_last)
          store_epilogue(out, row + m, place, sums[m][v]);
        else
          std::memcpy(partial + m * kPanel + place, &sums[m][v], sizeof sums[m][v]);
      }
    }
  }
}

// Calls `rounded_tile` with `count` rows, at most kRows, as a template argument.
template <int kRows>
WEFT_INLINE void rounded_tile_of(std::int64_t count, const Rows &in, std::int64_t group, const std::uint32_t *panel,
                                 const Depth &depth, float *partial, const Epilogue &out) {
  if constexpr (kRows > 0) {
    if (count == kRows) return rounded_tile<kRows>(in, group, panel, depth, partial, out);
    rounded_tile_of<kRows - 1>(count, in, group, panel, depth, partial, out);
  }
}

// Multiplies all groups by one panel. If there are several, all of them do some blocks of inputs before the next ones,
// so that the weights are read from memory once.
void times_rounded(const Rows &in, const void *weights, float *partial, const Epilogue &out) {
  const auto *panel = static_cast<const std::uint32_t *>(weights);
  const std::int64_t groups = groups_of(in), blocks = ceil_div(in.width, kInputsOfTile);
  if (groups == 1) return rounded_tile_of<kMaxTileRows>(in.count, in, 0, panel, {0, blocks, nullptr, 0}, partial, out);
  const int lines = static_cast<int>(ceil_div(kLinesOfBlock, kPairs * groups));
  const std::int64_t at_once = ceil_div(blocks, ceil_div(blocks, kBlocksAtOnce));
  for (std::int64_t begin = 0; begin < blocks; begin += at_once) {
    const std::int64_t end = std::min(begin + at_once, blocks);
    const char *next = reinterpret_cast<const char *>(panel + end * kWordsOfBlock);
    for (std::int64_t g = 0; g < groups; ++g) {
      const Depth depth{begin, end, next + (end - begin) * kLinesOfBlock * g / groups * kLineBytes, lines};
      rounded_tile_of<kMaxTileRows>(std::min(in.group, in.count - g * in.group), in, g, panel, depth, partial, out);
    }
  }
}

std::int64_t rounded_scratch(std::int64_t rows, std::int64_t) { return rows * kPanel; }

const RoundedKernels kBFloat16 = {{times_rounded, rounded_scratch, WEFT_PAIRS ? 2 : 1},
                                  {kMaxTileRows, kMinRowBlock, rounded_bytes, round_rows}};
