// The inner loops of group.cpp, which includes this by each_target.h: once for each instruction set (WEFT_TARGET), each
// time in another namespace. So there is no include guard.

// A vector has the size of one register, because the compiler keeps larger ones in memory. The order of a sum of
// products does not depend on it. The compiler may reorder other sums, such as that of a softmax (-ffast-math).
constexpr int kRegister = WEFT_TARGET ? WEFT_TARGET / 32 : 4;

template <class V>
WEFT_INLINE V load_as(const void *from) {
  V lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

template <int kLanes>
WEFT_INLINE Lanes<kLanes> load(const float *from) {
  return load_as<Lanes<kLanes>>(from);
}

template <class V>
WEFT_INLINE void store(float *to, const V &lanes) {
  std::memcpy(to, &lanes, sizeof lanes);
}

// Returns a + b. The compiler must not change the order of a chain of such sums (-ffast-math).
WEFT_INLINE float add_in_order(float a, float b) {
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
  return __builtin_assoc_barrier(a + b);
#else
  return a + b;
#endif
}

// Returns x, a sum or product that the compiler must not take apart (-ffast-math). GCC would split the vectors of
// __builtin_assoc_barrier into floats.
template <class V>
WEFT_INLINE V whole(V x) {
  if constexpr (sizeof x < 16) {
    for (std::size_t k = 0; k < sizeof x / sizeof(float); ++k) x[k] = add_in_order(x[k], 0);
  } else {
#if defined(__x86_64__)
    asm("" : "+v"(x));
#elif defined(__aarch64__)
    asm("" : "+w"(x));
#endif
  }
  return x;
}

// ---- cached numbers --------------------------------------------------------------------------------------------

// Widens codes to float32, each in the lowest bits of a lane; the other bits are 0. The scale of int8 is not applied.
template <int kLanes>
WEFT_INLINE Lanes<kLanes> widened(Bits<kLanes> codes, Half) {
  const Bits<kLanes> shifted = (codes & 0x7fff) << 13;
  const Lanes<kLanes> finite = (Lanes<kLanes>)shifted * 0x1p112f;
  const Bits<kLanes> magnitude = (codes & 0x7c00) == 0x7c00 ? shifted | 0x7f800000 : (Bits<kLanes>)finite;
  return (Lanes<kLanes>)(magnitude | (codes & 0x8000) << 16);
}
template <int kLanes>
WEFT_INLINE Lanes<kLanes> widened(Bits<kLanes> codes, BFloat16) {
  return (Lanes<kLanes>)(codes << 16);
}
template <int kLanes>
WEFT_INLINE Lanes<kLanes> widened(Bits<kLanes> codes, Float8) {
  const Bits<kLanes> magnitude = codes & 0x7f;
  // Products of numbers below 2^-126 take long on some processors, so subnormal codes are converted as integers.
  const Lanes<kLanes> subnormal =
      __builtin_convertvector((typename Vector<kLanes>::Places)magnitude, Lanes<kLanes>) * 0x1p-9f;
  const Bits<kLanes> normal = (magnitude << 20) + 0x3c000000;
  Bits<kLanes> bits = magnitude < 8 ? (Bits<kLanes>)subnormal : normal;
  bits = magnitude == 0x7f ? normal | 0x7fc00000 : bits;
  return (Lanes<kLanes>)(bits | (codes & 0x80) << 24);
}
template <int kLanes>
WEFT_INLINE Lanes<kLanes> widened(Bits<kLanes> codes, Int8) {
  typedef typename Vector<kLanes>::Places Places;
  return __builtin_convertvector((Places)(codes << 24) >> 24, Lanes<kLanes>);
}

// Returns code number `i` of each lane: a lane of `packed` has 4 / sizeof(Code) of them.
template <class Code, int kLanes>
WEFT_INLINE Lanes<kLanes> unpacked(const Lanes<kLanes> &packed, int i) {
  if constexpr (std::is_same_v<Code, float>) {
    return packed;
  } else if constexpr (std::is_same_v<Code, BFloat16>) {
    const Bits<kLanes> bits = (Bits<kLanes>)packed;
    return (Lanes<kLanes>)(i ? bits & 0xffff0000 : bits << 16);
  } else {
    constexpr int kBits = 8 * sizeof(Code);
    return widened<kLanes>((Bits<kLanes>)packed >> (i * kBits) & ((1u << kBits) - 1), Code{});
  }
}

#if WEFT_TARGET == 512
WEFT_INLINE Lanes<16> from_halves(__m256i codes) { return (Lanes<16>)_mm512_cvtph_ps(codes); }
WEFT_INLINE Lanes<16> load_register(Half, const char *from) { return from_halves(load_as<__m256i>(from)); }
WEFT_INLINE Lanes<16> load_register(BFloat16, const char *from) {
  return (Lanes<16>)_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_as<__m256i>(from)), 16);
}
WEFT_INLINE Lanes<16> load_register(Int8, const char *from) {
  return (Lanes<16>)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_as<__m128i>(from)));
}
// A float8 is 256 times the float16 with the same bits of sign, exponent and fraction, but for NaN.
WEFT_INLINE Lanes<16> load_register(Float8, const char *from) {
  typedef short Shorts __attribute__((vector_size(32)));
  const Shorts codes = (Shorts)_mm256_cvtepi8_epi16(load_as<__m128i>(from)) << 7 & static_cast<short>(0xbf80);
  return from_halves((__m256i)(codes | (((codes & 0x3f80) == 0x3f80) & 0x7e00))) * 256;
}
#elif WEFT_TARGET == 256
WEFT_INLINE Lanes<8> from_halves(__m128i codes) { return (Lanes<8>)_mm256_cvtph_ps(codes); }
WEFT_INLINE Lanes<8> load_register(Half, const char *from) { return from_halves(load_as<__m128i>(from)); }
WEFT_INLINE Lanes<8> load_register(BFloat16, const char *from) {
  return (Lanes<8>)_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_as<__m128i>(from)), 16);
}
WEFT_INLINE Lanes<8> load_register(Int8, const char *from) {
  return (Lanes<8>)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(load_as<long long>(from))));
}
WEFT_INLINE Lanes<8> load_register(Float8, const char *from) {
  typedef short Shorts __attribute__((vector_size(16)));
  const Shorts codes =
      (Shorts)_mm_cvtepi8_epi16(_mm_cvtsi64_si128(load_as<long long>(from))) << 7 & static_cast<short>(0xbf80);
  return from_halves((__m128i)(codes | (((codes & 0x3f80) == 0x3f80) & 0x7e00))) * 256;
}
#endif

// Returns kLanes adjacent numbers. The scale of int8 is not applied.
template <class Code, int kLanes>
WEFT_INLINE Lanes<kLanes> load_numbers(const char *from) {
  if constexpr (std::is_same_v<Code, float>) {
    return load_as<Lanes<kLanes>>(from);
#if WEFT_TARGET
  } else if constexpr (kLanes == kRegister) {
    return load_register(Code{}, from);
#endif
  } else {
    using Codes =
        std::conditional_t<sizeof(Code) == 2, typename Vector<kLanes>::Shorts, typename Vector<kLanes>::Bytes>;
    return widened<kLanes>(__builtin_convertvector(load_as<Codes>(from), Bits<kLanes>), Code{});
  }
}

// Applies a scale of int8. The compiler must not multiply it by something else first.
template <class Code, class V, class Scale>
WEFT_INLINE V scaled(const V &numbers, const Scale &scale) {
  if constexpr (std::is_same_v<Code, Int8>) {
    return whole<V>(numbers * scale);
  } else {
    return numbers;
  }
}

// Returns the scale at an address, or 1 for a type without scales.
template <class Code>
WEFT_INLINE float scale_at(const char *at) {
  if constexpr (std::is_same_v<Code, Int8>) {
    return widen(load_as<BFloat16>(at));
  } else {
    return 1;
  }
}

// ---- scores ----------------------------------------------------------------------------------------------------

// Prefetches `count` numbers of tokens first..last, from `offset` bytes on, and their scale.
template <class Code>
WEFT_INLINE void prefetch_tokens(const Group &g, std::int64_t first, std::int64_t last, std::int64_t offset,
                                 std::int64_t count, std::int64_t scale) {
  constexpr std::int64_t kLine = 64;
  for (std::int64_t n = first; n <= last && n < g.length; ++n) {
    for (std::int64_t at = 0; at < count * std::int64_t{sizeof(Code)}; at += kLine)
      __builtin_prefetch(g.tokens[n] + offset + at);
    if constexpr (std::is_same_v<Code, Int8>) __builtin_prefetch(g.tokens[n] + scale);
  }
}

typedef float Quad __attribute__((vector_size(16)));

// Returns the quads at places 0, kStep, ... of `from`, one after another.
template <int kLanes, int kStep>
WEFT_INLINE Lanes<kLanes> joined(const char *const *from, std::int64_t offset) {
  if constexpr (kLanes == 4) {
    return load_as<Quad>(*from + offset);
  } else {
    typedef typename Vector<kLanes>::Lanes Joined;
    const auto low = joined<kLanes / 2, kStep>(from, offset),
               high = joined<kLanes / 2, kStep>(from + kLanes / 8 * kStep, offset);
    if constexpr (kLanes == 8) {
      return (Joined)__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    } else {
      return (Joined)__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    }
  }
}

// Returns runs of kWidth floats of a and b in turn, quad by quad: those of the low halves of quads, or of the high
// ones.
template <int kLanes, int kWidth, bool kHigh, int... kPlaces>
WEFT_INLINE Lanes<kLanes> interleaved(const Lanes<kLanes> &a, const Lanes<kLanes> &b,
                                      std::integer_sequence<int, kPlaces...>) {
  constexpr auto place = [](int k) {
    const int run = k % 4 / kWidth;
    return k / 4 * 4 + 2 * kHigh + run / 2 * kWidth + k % kWidth + run % 2 * kLanes;
  };
  return (Lanes<kLanes>)__builtin_shufflevector(a, b, place(kPlaces)...);
}
template <int kLanes, int kWidth, bool kHigh>
WEFT_INLINE Lanes<kLanes> interleaved(const Lanes<kLanes> &a, const Lanes<kLanes> &b) {
  return interleaved<kLanes, kWidth, kHigh>(a, b, std::make_integer_sequence<int, kLanes>{});
}

// Calls f(0) .. f(kCount - 1), each with a constant. Arrays that are indexed by these stay in registers.
template <class F, int... kIndices>
WEFT_INLINE void repeat(F &&f, std::integer_sequence<int, kIndices...>) {
  (f(std::integral_constant<int, kIndices>{}), ...);
}
template <int kCount, class F>
WEFT_INLINE void repeat(F &&f) {
  repeat(f, std::make_integer_sequence<int, kCount>{});
}

// Calls visit(d, is_odd, numbers) for each dimension d in order, with the numbers of kLanes keys in that dimension;
// is_odd is a constant. Keys are those at `tokens`, and scales those of int8. Keys are transposed before they are
// widened, several narrow numbers as one.
template <class Code, int kLanes, class Visit>
WEFT_INLINE void visit_dimensions(const char *const *tokens, std::int64_t key_size, const float *scales,
                                  Visit &&visit) {
  constexpr int kPacked = 4 / sizeof(Code), kQuads = kLanes == 16 ? 4 : 1;
  Lanes<kLanes> scale = {};
  if constexpr (std::is_same_v<Code, Int8>) scale = load<kLanes>(scales);
  const auto visit_quads = [&](std::int64_t d, auto count) WEFT_INLINE_LAMBDA {
    constexpr int kCount = decltype(count)::value;
    Lanes<kLanes> rows[4][kCount];
    repeat<4>([&](auto r) WEFT_INLINE_LAMBDA {
      repeat<kCount>([&](auto c) WEFT_INLINE_LAMBDA {
        rows[r][c] = joined<kLanes, 4>(tokens + r, d * std::int64_t{sizeof(Code)} + 16 * c);
      });
    });
    repeat<kCount>([&](auto c) WEFT_INLINE_LAMBDA {
      const auto low = interleaved<kLanes, 1, false>(rows[0][c], rows[1][c]);
      const auto high = interleaved<kLanes, 1, true>(rows[0][c], rows[1][c]);
      const auto low_2 = interleaved<kLanes, 1, false>(rows[2][c], rows[3][c]);
      const auto high_2 = interleaved<kLanes, 1, true>(rows[2][c], rows[3][c]);
      const Lanes<kLanes> columns[4] = {
          interleaved<kLanes, 2, false>(low, low_2), interleaved<kLanes, 2, true>(low, low_2),
          interleaved<kLanes, 2, false>(high, high_2), interleaved<kLanes, 2, true>(high, high_2)};
      repeat<4 * kPacked>([&](auto k) WEFT_INLINE_LAMBDA {
        visit(d + 4 * c * kPacked + k, std::bool_constant<k % 2 != 0>{},
              scaled<Code>(unpacked<Code, kLanes>(columns[k / kPacked], k % kPacked), scale));
      });
    });
  };
  std::int64_t d = 0;
  for (; d + 4 * kQuads * kPacked <= key_size; d += 4 * kQuads * kPacked)
    visit_quads(d, std::integral_constant<int, kQuads>{});
  if constexpr (kQuads > 1)
    for (; d + 4 * kPacked <= key_size; d += 4 * kPacked) visit_quads(d, std::integral_constant<int, 1>{});
  const auto visit_one = [&](std::int64_t at, auto is_odd) WEFT_INLINE_LAMBDA {
    Lanes<kLanes> numbers;
    for (int n = 0; n < kLanes; ++n) numbers[n] = load_numbers<Code, 1>(tokens[n] + at * std::int64_t{sizeof(Code)})[0];
    visit(at, is_odd, scaled<Code>(numbers, scale));
  };
  for (; d < key_size; d += 2) {
    visit_one(d, std::false_type{});
    if (d + 1 < key_size) visit_one(d + 1, std::true_type{});
  }
}

// A tile of keys that are all there: at the end of the text the last one is repeated.
template <class Code>
struct KeyTile {
  const char *const *tokens;
  const char *repeated[kKeyTile];
  float scales[kKeyTile];

  WEFT_INLINE KeyTile(const Group &g, std::int64_t first) : tokens(g.tokens + first) {
    if (first + kKeyTile > g.length) {
      for (std::int64_t n = 0; n < kKeyTile; ++n) repeated[n] = g.tokens[std::min(first + n, g.length - 1)];
      tokens = repeated;
    }
    if constexpr (std::is_same_v<Code, Int8>)
      for (std::int64_t n = 0; n < kKeyTile; ++n) scales[n] = scale_at<Code>(tokens[n] + g.key_scale);
  }
};

// Computes the scores of queries m .. m + kQueries - 1 with kLanes transposed keys. Several queries at once hide the
// latency of each sum, and do not change the order within a sum.
template <int kLanes, int kQueries>
WEFT_INLINE void score_keys(const Group &g, std::int64_t m, const float *keys, std::int64_t first,
                            std::int64_t key_size) {
  Lanes<kLanes> even[kQueries] = {}, odd[kQueries] = {};
  for (std::int64_t d = 0; d + 1 < key_size; d += 2) {
    const auto these = load<kLanes>(keys + d * kKeyTile), next = load<kLanes>(keys + (d + 1) * kKeyTile);
    for (int k = 0; k < kQueries; ++k) {
      even[k] += g.queries[m + k][d] * these;
      odd[k] += g.queries[m + k][d + 1] * next;
    }
  }
  for (int k = 0; k < kQueries; ++k) {
    if (key_size % 2)
      even[k] = whole<Lanes<kLanes>>(even[k] +
                                     g.queries[m + k][key_size - 1] * load<kLanes>(keys + (key_size - 1) * kKeyTile));
    store(g.scores + (m + k) * g.stride + first, (even[k] + odd[k]) * g.scale);
  }
}

template <int kLanes, int kQueries>
WEFT_INLINE void score_tile(const Group &g, std::int64_t m, std::int64_t first, std::int64_t key_size) {
  for (std::int64_t n = 0; n < kKeyTile; n += kLanes)
    score_keys<kLanes, kQueries>(g, m, g.keys + n, first + n, key_size);
}

// Computes the scores of all queries from `m` on, in tiles of at most kQueries.
template <int kLanes, int kQueries>
WEFT_INLINE void score_queries(const Group &g, std::int64_t m, std::int64_t first, std::int64_t key_size) {
  for (; m + kQueries <= g.count; m += kQueries) score_tile<kLanes, kQueries>(g, m, first, key_size);
  if constexpr (kQueries > 1) score_queries<kLanes, kQueries - 1>(g, m, first, key_size);
}

// Computes the scores of all queries with the keys that they see, in whole tiles. Transposed keys are stored for the
// tiles of queries.
template <class Code, int kLanes>
WEFT_INLINE void score_many(const Group &g, std::int64_t key_size) {
  for (std::int64_t first = 0; first < g.length; first += kKeyTile) {
    prefetch_tokens<Code>(g, first + kKeysAhead, first + kKeysAhead + kKeyTile - 1, 0, key_size, g.key_scale);
    const KeyTile<Code> tile(g, first);
    for (std::int64_t n = 0; n < kKeyTile; n += kLanes)
      visit_dimensions<Code, kLanes>(tile.tokens + n, key_size, tile.scales + n,
                                     [&](std::int64_t d, auto, const Lanes<kLanes> &numbers)
                                         WEFT_INLINE_LAMBDA { store(g.keys + d * kKeyTile + n, numbers); });
    std::int64_t m = 0;
    for (; m < g.count && g.lengths[m] <= first; ++m) continue;  // queries before these keys
    score_queries<kLanes, kQueryTile>(g, m / kQueryTile * kQueryTile, first, key_size);
  }
}

// The same for kQueries queries and keys of an even size. Transposed keys stay in registers.
template <class Code, int kLanes, int kQueries>
WEFT_INLINE void score_few(const Group &g, std::int64_t key_size) {
  const float *queries[kQueries];
  for (int k = 0; k < kQueries; ++k) queries[k] = g.queries[k];
  for (std::int64_t first = 0; first < g.length; first += kKeyTile) {
    prefetch_tokens<Code>(g, first + kKeysAhead, first + kKeysAhead + kKeyTile - 1, 0, key_size, g.key_scale);
    const KeyTile<Code> tile(g, first);
    for (std::int64_t n = 0; n < kKeyTile; n += kLanes) {
      Lanes<kLanes> even[kQueries] = {}, odd[kQueries] = {};
      const auto add = [&](std::int64_t d, auto is_odd, const Lanes<kLanes> &numbers) WEFT_INLINE_LAMBDA {
        repeat<kQueries>([&](auto k) WEFT_INLINE_LAMBDA {
          Lanes<kLanes> &sum = decltype(is_odd)::value ? odd[k] : even[k];
          sum = whole<Lanes<kLanes>>(sum + queries[k][d] * numbers);
        });
      };
      visit_dimensions<Code, kLanes>(tile.tokens + n, key_size, tile.scales + n, add);
      for (int k = 0; k < kQueries; ++k) store(g.scores + k * g.stride + first + n, (even[k] + odd[k]) * g.scale);
    }
  }
}

template <class Code, int kLanes, int kQueries = kQueryTile>
WEFT_INLINE void score(const Group &g, std::int64_t key_size) {
  if constexpr (kQueries == 0) {
    score_many<Code, kLanes>(g, key_size);
  } else if (g.count == kQueries && key_size % 2 == 0) {
    score_few<Code, kLanes, kQueries>(g, key_size);
  } else {
    score<Code, kLanes, kQueries - 1>(g, key_size);
  }
}

// ---- softmax and values ----------------------------------------------------------------------------------------

// Returns `lanes` in another order: lane k becomes lane k ^ kDistance.
template <int kLanes, int kDistance, int... kPlaces>
WEFT_INLINE Lanes<kLanes> exchange(const Lanes<kLanes> &lanes, std::integer_sequence<int, kPlaces...>) {
  return (Lanes<kLanes>)__builtin_shufflevector(lanes, lanes, (kPlaces ^ kDistance)...);
}
template <int kLanes, int kDistance>
WEFT_INLINE Lanes<kLanes> exchange(const Lanes<kLanes> &lanes) {
  return exchange<kLanes, kDistance>(lanes, std::make_integer_sequence<int, kLanes>{});
}

// Returns the largest of the first kCount lanes, or their sum, by halves.
template <int kLanes, int kCount>
WEFT_INLINE float largest_of(const Lanes<kLanes> &lanes) {
  if constexpr (kCount == 1) {
    return lanes[0];
  } else {
    const auto others = exchange<kLanes, kCount / 2>(lanes);
    return largest_of<kLanes, kCount / 2>(others > lanes ? others : lanes);
  }
}
template <int kLanes, int kCount>
WEFT_INLINE float sum_of(const Lanes<kLanes> &lanes) {
  if constexpr (kCount == 1) {
    return lanes[0];
  } else {
    return sum_of<kLanes, kCount / 2>(lanes + exchange<kLanes, kCount / 2>(lanes));
  }
}

// Caps a row of scores softly. Scores after `length`, up to a multiple of kKeyTile, are overwritten, because whole
// tiles are faster than single scores.
WEFT_INLINE void cap_scores(float *scores, std::int64_t length, float softcap) {
  const float scale = 1 / softcap;
  for (std::int64_t at = 0; at < length; at += kKeyTile)
    for (int k = 0; k < kKeyTile; ++k) scores[at + k] = softcap * vector_tanh(scores[at + k] * scale);
}

// Replaces a row of scores by exp(score - maximum), and returns their sum: a softmax without the division. `sink` is a
// further logit of the maximum and the sum, or null. Scores after `length` are overwritten as by `cap_scores`.
//
// The order of the sum is fixed: kLanes sums; half as many, which get kLanes / 2 scores if there are as many left; the
// sum of these; then the other scores one by one; and last the sink.
template <int kLanes>
WEFT_INLINE float exponentiate(float *scores, std::int64_t length, const float *sink) {
  const std::int64_t whole = length / kLanes * kLanes;
  const auto lowest = Lanes<kLanes>{} - INFINITY;
  auto highest = lowest;
  for (std::int64_t at = 0; at < whole; at += kLanes) {
    const auto tile = load<kLanes>(scores + at);
    highest = tile > highest ? tile : highest;
  }
  if (whole < length) {
    typename Vector<kLanes>::Places places;
    for (int k = 0; k < kLanes; ++k) places[k] = k;
    const auto tile = places < static_cast<int>(length - whole) ? load<kLanes>(scores + whole) : lowest;
    highest = tile > highest ? tile : highest;
  }
  float top = largest_of<kLanes, kLanes>(highest);
  if (sink) top = std::max(top, *sink);
  for (std::int64_t at = 0; at < length; at += kKeyTile)
    for (int k = 0; k < kKeyTile; ++k) scores[at + k] = vector_exp(scores[at + k] - top);
  constexpr int kHalf = kLanes / 2;
  Lanes<kLanes> sums = {};
  std::int64_t at = 0;
  for (; at < whole; at += kLanes) sums += load<kLanes>(scores + at);
  sums += exchange<kLanes, kHalf>(sums);
  if (at + kHalf <= length) {
    sums += load<kLanes>(scores + at);  // only the first half of the lanes is used from here on
    at += kHalf;
  }
  float sum = sum_of<kLanes, kHalf>(sums);
  for (int k = 0; k < kHalf - 1; ++k) sum = add_in_order(sum, at + k < length ? scores[at + k] : 0.0f);
  return sink ? add_in_order(sum, vector_exp(*sink - top)) : sum;
}

// Does the same for a query that does not see keys hidden..first-1; their weights become 0. Each place in a tile has
// its own sum, so the result has the same bits if some or all whole hidden tiles are left out.
WEFT_INLINE float exponentiate_around(float *scores, std::int64_t hidden, std::int64_t first, std::int64_t length,
                                      const float *sink) {
  float highest[kKeyTile], sums[kKeyTile] = {}, top = -INFINITY, total = 0;
  const auto is_seen = [=](std::int64_t n) { return (n < hidden) | ((n >= first) & (n < length)); };
  for (int k = 0; k < kKeyTile; ++k) highest[k] = -INFINITY;
  for (std::int64_t at = 0; at < length; at += kKeyTile)
    for (int k = 0; k < kKeyTile; ++k) {
      const float score = is_seen(at + k) ? scores[at + k] : -INFINITY;
      highest[k] = score > highest[k] ? score : highest[k];
    }
  for (int k = 0; k < kKeyTile; ++k) top = std::max(top, highest[k]);
  if (sink) top = std::max(top, *sink);
  for (std::int64_t at = 0; at < length; at += kKeyTile)
    for (int k = 0; k < kKeyTile; ++k) {
      const float weight = vector_exp(scores[at + k] - top);
      scores[at + k] = is_seen(at + k) ? weight : 0;
      sums[k] += scores[at + k];
    }
  for (int k = 0; k < kKeyTile; ++k) total = add_in_order(total, sums[k]);
  return sink ? add_in_order(total, vector_exp(*sink - top)) : total;
}

template <int kLanes>
WEFT_INLINE float exponentiate(const Group &g, std::int64_t m) {
  float *const scores = g.scores + m * g.stride;
  const float *const sink = g.sink_logits ? g.sink_logits + m : nullptr;
  if (g.softcap > 0) cap_scores(scores, g.lengths[m], g.softcap);
  if (g.starts && g.starts[m] >= 0) return exponentiate_around(scores, g.sinks, g.starts[m], g.lengths[m], sink);
  return exponentiate<kLanes>(scores, g.lengths[m], sink);
}

// Computes outputs, the weighted sums of values, for queries m .. m + kQueries - 1: kVectors vectors of each, from
// dimension `first` on.
template <class Code, int kLanes, int kQueries, int kVectors>
WEFT_INLINE void sum_values(const Group &g, std::int64_t m, std::int64_t first, const float *scales) {
  Lanes<kLanes> sums[kQueries][kVectors] = {};
  std::int64_t n = 0, shared = g.lengths[m];
  for (int k = 1; k < kQueries; ++k) shared = std::min(shared, g.lengths[m + k]);
  const float *weights = g.scores + m * g.stride;
  const std::int64_t offset = g.values + first * std::int64_t{sizeof(Code)};
  const auto numbers = [&](std::int64_t token, int v) WEFT_INLINE_LAMBDA {
    const char *const at = g.tokens[token] + offset + v * kLanes * std::int64_t{sizeof(Code)};
    return scaled<Code>(load_numbers<Code, kLanes>(at), scale_at<Code>(g.tokens[token] + g.value_scale));
  };
  for (; n < shared; ++n) {
    prefetch_tokens<Code>(g, n + kValuesAhead, n + kValuesAhead, offset, kVectors * kLanes, g.value_scale);
    for (int v = 0; v < kVectors; ++v) {
      const auto values = numbers(n, v);
      for (int k = 0; k < kQueries; ++k) sums[k][v] += weights[k * g.stride + n] * values;
    }
  }
  for (int k = 0; k < kQueries; ++k) {
    for (std::int64_t rest = n; rest < g.lengths[m + k]; ++rest)
      for (int v = 0; v < kVectors; ++v) sums[k][v] += weights[k * g.stride + rest] * numbers(rest, v);
    for (int v = 0; v < kVectors; ++v) store(g.outs[m + k] + first + v * kLanes, sums[k][v] * scales[k]);
  }
}

// Computes the last dimensions, fewer than kLanes from `first` on, by a vector that overlaps the one before it, or by
// smaller vectors if there is none.
template <class Code, int kLanes, int kQueries>
WEFT_INLINE void sum_last_values(const Group &g, std::int64_t m, std::int64_t first, const float *scales) {
  if (g.value_size >= kLanes) {
    for (; first < g.value_size; first += kLanes)
      sum_values<Code, kLanes, kQueries, 1>(g, m, std::min(first, g.value_size - kLanes), scales);
  } else if constexpr (kLanes > 1) {
    sum_last_values<Code, kLanes / 2, kQueries>(g, m, first, scales);
  }
}

template <class Code, int kLanes, int kQueries>
WEFT_INLINE void attend_tile(const Group &g, std::int64_t m) {
  float scales[kQueries];
  for (int k = 0; k < kQueries; ++k) scales[k] = 1 / exponentiate<kLanes>(g, m + k);
  std::int64_t d = 0;
  if constexpr (kLanes == 16)  // which has more registers
    for (; d + 4 * kLanes <= g.value_size; d += 4 * kLanes) sum_values<Code, kLanes, kQueries, 4>(g, m, d, scales);
  for (; d + 2 * kLanes <= g.value_size; d += 2 * kLanes) sum_values<Code, kLanes, kQueries, 2>(g, m, d, scales);
  for (; d + kLanes <= g.value_size; d += kLanes) sum_values<Code, kLanes, kQueries, 1>(g, m, d, scales);
  if (d < g.value_size) sum_last_values<Code, kLanes, kQueries>(g, m, d, scales);
}

// Computes the outputs of all queries from `m` on, in tiles of at most kQueries.
template <class Code, int kLanes, int kQueries>
WEFT_INLINE void attend_queries(const Group &g, std::int64_t m) {
  for (; m + kQueries <= g.count; m += kQueries) attend_tile<Code, kLanes, kQueries>(g, m);
  if constexpr (kQueries > 1) attend_queries<Code, kLanes, kQueries - 1>(g, m);
}

template <class Code>
void attend(const Group &g) {
  score<Code, kRegister>(g, g.key_size);
  attend_queries<Code, kRegister, kQueryTile>(g, 0);
}

constexpr Kernels kKernels = {attend<float>, attend<Half>, attend<BFloat16>, attend<Float8>, attend<Int8>};
