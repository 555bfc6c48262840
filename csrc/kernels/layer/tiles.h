// The inner loops of linear.cpp, which includes this by each_target.h: once for each instruction set (WEFT_TARGET),
// each time in another namespace. So there is no include guard.

#include "kernels/layer/lanes.h"

// A register tile is up to kMaxTileRows rows by vectors_of(rows) vectors of a panel. Its sums and the weights fill the
// registers, of which AVX-512 has 32 and the others 16. With fewer rows a tile has more vectors: a multiply-add waits
// four cycles for the previous one of the same sum, so several independent sums are needed.
constexpr int kMaxTileRows = 6;
#if WEFT_TARGET == 512
constexpr int vectors_of(int) { return 4; }
#else
constexpr int vectors_of(int rows) { return rows == 1 ? 8 : rows == 2 ? 4 : 2; }
#endif

WEFT_INLINE Lanes widened(const float *w) { return load(w); }

#if WEFT_TARGET == 512
WEFT_INLINE Lanes widened(const Half *w) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(w)));
}
WEFT_INLINE Lanes widened(const BFloat16 *w) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(w)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
#elif WEFT_TARGET == 256
WEFT_INLINE Lanes widened(const Half *w) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(w)));
}
WEFT_INLINE Lanes widened(const BFloat16 *w) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(w)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
#else
template <class W>
WEFT_INLINE Lanes widened(const W *w) {
  Lanes lanes;
  for (int k = 0; k < kLanes; ++k) lanes[k] = widen(w[k]);
  return lanes;
}
#endif

// Multiplies kRows rows from `row` on by one block of inputs of a panel. `partial` [rows, kPanel] keeps the sums
// between blocks; the last block applies the epilogue.
template <class W, int kRows>
WEFT_INLINE void tile(const Rows &in, const W *panel, std::int64_t row, const Depth &depth, float *partial,
                      const Epilogue &out) {
  constexpr int kVectors = vectors_of(kRows), kWidth = kVectors * kLanes;
  constexpr std::int64_t kLine = 64 / sizeof(W), kAhead = 2048 / sizeof(W);
  const float *x = in.x + row * in.stride;
  partial += row * kPanel;
  for (int first = 0; first < kPanel; first += kWidth) {
    const W *w = panel + depth.begin * kPanel + first;
    const char *share = depth.share;
    Lanes sums[kRows][kVectors] = {};
    if (depth.begin > 0) {
      for (int m = 0; m < kRows; ++m)
        for (int v = 0; v < kVectors; ++v) sums[m][v] = load(partial + m * kPanel + first + v * kLanes);
    }
    for (std::int64_t i = depth.begin; i < depth.end; ++i, w += kPanel) {
      if (share) {
        for (int line = 0; line < depth.lines; ++line, share += 64) __builtin_prefetch(share, 0, 2);
      }
      for (int line = 0; line < kWidth; line += kLine) __builtin_prefetch(w + kAhead + line);
      Lanes weights[kVectors];
      for (int v = 0; v < kVectors; ++v) weights[v] = widened(w + v * kLanes);
      for (int m = 0; m < kRows; ++m) {
        const float value = x[m * in.stride + i];
        for (int v = 0; v < kVectors; ++v) sums[m][v] += value * weights[v];
      }
    }
    for (int m = 0; m < kRows; ++m) {
      for (int v = 0; v < kVectors; ++v) {
        const int place = first + v * kLanes;
        if (depth.end < in.width)
          std::memcpy(partial + m * kPanel + place, &sums[m][v], sizeof sums[m][v]);
        else
          store_epilogue(out, row + m, place, sums[m][v]);
      }
    }
  }
}

// Calls `tile` with `count` rows, at most kRows, as a template argument.
template <class W, int kRows>
WEFT_INLINE void tile_of(std::int64_t count, const Rows &in, const W *panel, std::int64_t row, const Depth &depth,
                         float *partial, const Epilogue &out) {
  if constexpr (kRows > 0) {
    if (count == kRows) return tile<W, kRows>(in, panel, row, depth, partial, out);
    tile_of<W, kRows - 1>(count, in, panel, row, depth, partial, out);
  }
}

// Widens `count` weights, a multiple of kLanes.
template <class W>
WEFT_INLINE void widen_weights(const W *from, std::int64_t count, float *to) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const Lanes lanes = widened(from + i);
    std::memcpy(to + i, &lanes, sizeof lanes);
  }
}

// Multiplies all rows by one panel, in tiles of about the same size. If there are several tiles, all of them do one
// block of inputs before the next, so that the weights are read from memory once. If there are many, weights of 16 bits
// are widened once for all of them. After the sums of the rows, `partial` has memory for kDepthBlock widened inputs.
template <class W>
void times_panel(const Rows &in, const void *weights, float *partial, const Epilogue &out) {
  const W *panel = static_cast<const W *>(weights);
  const std::int64_t tiles = ceil_div(in.count, kMaxTileRows);
  if (tiles <= 1) return tile_of<W, kMaxTileRows>(in.count, in, panel, 0, {0, in.width, nullptr, 0}, partial, out);
  constexpr std::int64_t kLines = kPanel * sizeof(W) / 64;  // of one input
  const int lines = static_cast<int>(ceil_div(kLines, tiles));
  const bool widens = sizeof(W) < sizeof(float) && tiles >= kMinTilesToWiden;
  float *const wide = partial + in.count * kPanel;
  // Blocks have nearly equal sizes: a block prefetches as many lines as it has itself, and these must cover the next.
  const std::int64_t inputs = ceil_div(in.width, ceil_div(in.width, kDepthBlock));
  for (std::int64_t begin = 0; begin < in.width; begin += inputs) {
    const std::int64_t end = std::min(begin + inputs, in.width);
    const char *next = reinterpret_cast<const char *>(panel + end * kPanel);
    if (widens) widen_weights(panel + begin * kPanel, (end - begin) * kPanel, wide);
    for (std::int64_t t = 0, row = 0; t < tiles; ++t) {
      const std::int64_t count = ceil_div(in.count - row, tiles - t);
      const Depth depth{begin, end, next + (end - begin) * kLines * t / tiles * 64, lines};
      if (widens)
        tile_of<float, kMaxTileRows>(count, in, wide - begin * kPanel, row, depth, partial, out);
      else
        tile_of<W, kMaxTileRows>(count, in, panel, row, depth, partial, out);
      row += count;
    }
  }
}

// Scales, caps and stores the first `valid` of kPanel results of a row, from output `first` on. Adds the residual.
WEFT_INLINE void finish(const LinearCall &call, std::int64_t row, std::int64_t first, std::int64_t valid,
                        float *results) {
  const float scale = call.scale, softcap = call.softcap;
  if (scale != 1) {
    for (std::int64_t n = 0; n < kPanel; ++n) results[n] *= scale;
  }
  if (softcap > 0) {
    const float inverse = 1 / softcap;
    for (std::int64_t n = 0; n < kPanel; ++n) results[n] = softcap * vector_tanh(results[n] * inverse);
  }
  if (call.residual) {
    const float *residual = call.residual + row * call.residual_row + first;
    for (std::int64_t n = 0; n < valid; ++n) results[n] += residual[n];
  }
  std::copy_n(results, valid, call.out + row * call.out_row + first);
}

// Applies `function` and what follows it to one panel of outputs. `gates` and `ups` are [rows, kPanel] each; `ups` is
// null without gates.
template <class F>
WEFT_INLINE void activate(const LinearCall &call, const Panel &panel, const float *gates, const float *ups,
                          F function) {
  const float limit = call.activation.limit, shift = call.activation.shift;
  for (std::int64_t r = 0; r < call.rows; ++r, gates += kPanel) {
    float product[kPanel];
    if (ups) {
      for (std::int64_t n = 0; n < kPanel; ++n) {  // comparisons keep NaN
        const float gate = gates[n] > limit ? limit : gates[n], low = ups[n] < -limit ? -limit : ups[n];
        product[n] = function(gate) * ((low > limit ? limit : low) + shift);
      }
      ups += kPanel;
    } else {
      for (std::int64_t n = 0; n < kPanel; ++n) product[n] = function(gates[n]);
    }
    finish(call, r, panel.first, panel.valid, product);
  }
}

WEFT_INLINE void activate(const LinearCall &call, const Panel &panel, const float *gates, const float *ups) {
  const float slope = call.activation.slope;
  switch (call.activation.function) {
    case Function::kNone:
      return activate(call, panel, gates, ups, [](float x) { return x; });
    case Function::kSilu:
      return activate(call, panel, gates, ups, [=](float x) { return times_sigmoid(x, slope * x); });
    case Function::kGelu:
      return activate(call, panel, gates, ups, [](float x) { return 0.5f * x * (1 + std::erf(x * 0x1.6a09e6p-1f)); });
    case Function::kGeluTanh:  // 1 + tanh(y) = 2 / (1 + exp(-2 y)), for y = sqrt(2 / pi) (x + 0.044715 x^3)
      return activate(call, panel, gates, ups,
                      [](float x) { return times_sigmoid(x, 0x1.988454p+0f * (x + 0.044715f * x * x * x)); });
    case Function::kRelu:
      return activate(call, panel, gates, ups, [](float x) { return x < 0 ? 0 : x; });
    case Function::kReluSquared:
      return activate(call, panel, gates, ups, [](float x) { return x < 0 ? 0 : x * x; });
  }
}

void multiply_panel(const LinearCall &call, const Panel &panel, const Inputs &in, float *scratch) {
  const bool is_plain = call.activation.function == Function::kNone && call.scale == 1 && call.softcap <= 0;
  const Rows &rows = in.rows[panel.reading];
  if (is_plain && !call.gated) return panel.kernel->times(rows, panel.weights, scratch, epilogue_of(call, panel));
  float *gates = scratch, *ups = gates + call.rows * kPanel, *sums = ups + call.rows * kPanel;
  panel.kernel->times(rows, panel.weights, sums, scratch_epilogue(call, panel, gates, 0));
  if (call.gated) {
    panel.ups_kernel->times(in.rows[panel.ups_reading], panel.ups, sums,
                            scratch_epilogue(call, panel, ups, call.outputs));
  }
  activate(call, panel, gates, call.gated ? ups : nullptr);
}

// The floats that times_panel needs: sums of the rows, and a block of widened weights.
std::int64_t scratch(std::int64_t rows, std::int64_t inputs) {
  return rows * kPanel + std::min(inputs, kDepthBlock) * kPanel;
}

void norm_rows(const NormCall &call, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    const float *x = call.x + r * call.x_row;
    float *out = call.out + r * call.out_row;
    // There are 64 sums, added in the same order for every vector length, so that AVX2 and AVX-512 give the same bits.
    constexpr int kQuarter = 16 / kLanes;
    Lanes sums[4 * kQuarter] = {};
    std::int64_t i = 0;
    for (; i + 64 <= call.width; i += 64) {
      for (int v = 0; v < 4 * kQuarter; ++v) {
        const Lanes values = load(x + i + v * kLanes);
        sums[v] += values * values;
      }
    }
    float squares = 0;
    for (int v = 0; v < kQuarter; ++v) {
      const Lanes four = (sums[v] + sums[kQuarter + v]) + (sums[2 * kQuarter + v] + sums[3 * kQuarter + v]);
      for (int k = 0; k < kLanes; ++k) squares += four[k];
    }
    for (; i < call.width; ++i) squares += x[i] * x[i];
    const float scale = 1 / std::sqrt(squares / static_cast<float>(call.width) + call.eps);
    if (const float *added = call.added ? call.added + r * call.added_row : nullptr) {
      for (std::int64_t n = 0; n < call.width; ++n) out[n] = added[n] + x[n] * scale * call.weight[n];
    } else {
      for (std::int64_t n = 0; n < call.width; ++n) out[n] = x[n] * scale * call.weight[n];
    }
  }
}

#include "kernels/layer/block_tiles.h"

const VectorKernels kVectorKernels = {{{times_panel<float>, scratch, 1},
                                       {times_panel<Half>, scratch, 1},
                                       {times_panel<BFloat16>, scratch, 1},
                                       kBlockKernel<Format::kQ4_0>,
                                       kBlockKernel<Format::kQ4_1>,
                                       kBlockKernel<Format::kQ5_0>,
                                       kBlockKernel<Format::kQ5_1>,
                                       kBlockKernel<Format::kQ8_0>,
                                       kBlockKernel<Format::kQ4_K>,
                                       kBlockKernel<Format::kQ5_K>,
                                       kBlockKernel<Format::kQ6_K>,
                                       kBlockKernel<Format::kIQ4_NL>,
                                       kBlockKernel<Format::kMXFP4>,
                                       kBlockKernel<Format::kInt4_32>,
                                       kBlockKernel<Format::kInt4_64>,
                                       kBlockKernel<Format::kInt4_128>,
                                       kBlockKernel<Format::kInt8_32>,
                                       kBlockKernel<Format::kInt8_128>,
                                       kBlockKernel<Format::kFP8>},
                                      multiply_panel,
                                      norm_rows};

#include "kernels/layer/tiles_bfloat16.h"
