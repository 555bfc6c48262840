// The inner loops of linear.cpp, which includes this once for each instruction set, inside a namespace of its own and
// with WEFT_TARGET saying which: functions here are compiled for it. So there is no include guard.

#if WEFT_TARGET == 512
constexpr int kMostRows = 6, kHalves = 1;  // at once: their sums and the weights fill the registers
#elif WEFT_TARGET == 256
constexpr int kMostRows = 3, kHalves = 2;
#else
constexpr int kMostRows = 4, kHalves = 4;
#endif
constexpr int kVectors = kPanel / kLanes / kHalves;

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
WEFT_INLINE Lanes joined(__m256 low, __m256 high) {
  Lanes lanes;
  std::memcpy(&lanes, &low, sizeof low);
  std::memcpy(reinterpret_cast<char *>(&lanes) + sizeof low, &high, sizeof high);
  return lanes;
}
WEFT_INLINE __m256 half_of(const Half *w) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(w)));
}
WEFT_INLINE __m256 half_of(const BFloat16 *w) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(w)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
template <class W>
WEFT_INLINE Lanes widened(const W *w) {
  return joined(half_of(w), half_of(w + 8));
}
#else
template <class W>
WEFT_INLINE Lanes widened(const W *w) {
  Lanes lanes;
  for (int k = 0; k < kLanes; ++k) lanes[k] = widen(w[k]);
  return lanes;
}
#endif

// kRows rows times one panel, to `out`. The weights are read once and in their order: they come from far away.
template <class W, int kRows>
WEFT_INLINE void tile(const Rows &in, const W *panel, std::int64_t row, const Sink &out) {
  const float *x = in.x + row * in.stride;
  for (int half = 0; half < kHalves; ++half) {
    const W *w = panel + half * kVectors * kLanes;
    Lanes sums[kRows][kVectors] = {};
    for (std::int64_t i = 0; i < in.width; ++i, w += kPanel) {
      Lanes weights[kVectors];
      for (int v = 0; v < kVectors; ++v) weights[v] = widened(w + v * kLanes);
      for (int m = 0; m < kRows; ++m) {
        const float value = x[m * in.stride + i];
        for (int v = 0; v < kVectors; ++v) sums[m][v] += value * weights[v];
      }
    }
    for (int m = 0; m < kRows; ++m)
      for (int v = 0; v < kVectors; ++v) put(out, row + m, (half * kVectors + v) * kLanes, sums[m][v]);
  }
}

template <class W, int kRows>
WEFT_INLINE void rest(const Rows &in, const W *panel, std::int64_t row, const Sink &out) {
  if constexpr (kRows > 0) {
    if (in.count - row == kRows) return tile<W, kRows>(in, panel, row, out);
    rest<W, kRows - 1>(in, panel, row, out);
  }
}

template <class W>
WEFT_INLINE void times_panel(const Rows &in, const W *panel, const Sink &out) {
  std::int64_t row = 0;
  for (; in.count - row >= kMostRows; row += kMostRows) tile<W, kMostRows>(in, panel, row, out);
  rest<W, kMostRows - 1>(in, panel, row, out);
}

// silu(gate) * up of panels that were multiplied to `gates` and `ups`, [rows, kPanel] each.
WEFT_INLINE void swiglu(const LinearCall &call, std::int64_t unit, const float *gates, const float *ups) {
  const std::int64_t first = unit * kPanel, valid = std::min(kPanel, call.outputs - first);
  for (std::int64_t r = 0; r < call.rows; ++r, gates += kPanel, ups += kPanel) {
    float *out = call.out + r * call.out_row + first, product[kPanel];
    for (std::int64_t n = 0; n < kPanel; ++n) product[n] = gates[n] / (1 + vector_exp(-gates[n])) * ups[n];
    std::copy(product, product + valid, out);
  }
}

template <class W>
void units(const LinearCall &call, const Rows &in, float *room, std::int64_t begin, std::int64_t end) {
  const W *panels = static_cast<const W *>(call.panels);
  const std::int64_t size = call.inputs * kPanel;
  for (std::int64_t unit = begin; unit < end; ++unit) {
    if (!call.swiglu) {
      times_panel<W>(in, panels + unit * size, sink_of(call, unit));
      continue;
    }
    float *ups = room + call.rows * kPanel;
    times_panel<W>(in, panels + 2 * unit * size, room_of(call, unit, room, 0));
    times_panel<W>(in, panels + (2 * unit + 1) * size, room_of(call, unit, ups, call.outputs));
    swiglu(call, unit, room, ups);
  }
}

void norm_rows(const NormCall &call, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    const float *x = call.x + r * call.x_row;
    float *out = call.out + r * call.out_row;
    Lanes sums[4] = {};
    std::int64_t i = 0;
    for (; i + 4 * kLanes <= call.width; i += 4 * kLanes) {
      for (int v = 0; v < 4; ++v) {
        const Lanes values = load(x + i + v * kLanes);
        sums[v] += values * values;
      }
    }
    const Lanes four = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float squares = 0;
    for (int k = 0; k < kLanes; ++k) squares += four[k];
    for (; i < call.width; ++i) squares += x[i] * x[i];
    const float scale = 1 / std::sqrt(squares / static_cast<float>(call.width) + call.eps);
    for (std::int64_t n = 0; n < call.width; ++n) out[n] = x[n] * scale * call.weight[n];
  }
}

const Units kUnits = {units<float>, units<Half>, units<BFloat16>, norm_rows};
