// The inner loops of recur.cpp, which includes this by each_target.h: once for each instruction set (WEFT_TARGET), each
// time in another namespace. So there is no include guard.
//
// A block is kStateColumns value dimensions of a head's state. It stays in the L1 cache over all tokens of a chain.
// Every sum and every product is written out, because the state after a token must have the same bits wherever it is
// computed. So the file is compiled without contraction of products and sums (-ffp-contract=off).

// A vector has the size of one register, because the compiler keeps larger ones in memory.
#if WEFT_TARGET == 512
constexpr int kLanes = 16;
#elif WEFT_TARGET == 256
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
constexpr int kVectors = static_cast<int>(kStateColumns) / kLanes;
// Blocks of a head that are computed together. They share the loads of keys and queries; their sums need registers.
constexpr int kMostTogether = WEFT_TARGET == 512 ? 2 : 1;

typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

WEFT_INLINE Lanes load(const float *from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

WEFT_INLINE void store(float *to, const Lanes &lanes) { std::memcpy(to, &lanes, sizeof lanes); }

// Returns a * b + c, rounded once if the instruction set can.
#if WEFT_TARGET == 512
WEFT_INLINE Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }
WEFT_INLINE Lanes spread(float x) { return _mm512_set1_ps(x); }
#elif WEFT_TARGET == 256
WEFT_INLINE Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return _mm256_fmadd_ps(a, b, c); }
WEFT_INLINE Lanes spread(float x) { return _mm256_set1_ps(x); }
#else
WEFT_INLINE Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return a * b + c; }
WEFT_INLINE Lanes spread(float x) { return x - Lanes{}; }
#endif

// A number for each value dimension of kBlocks blocks.
template <int kBlocks>
struct Columns {
  static constexpr int kParts = kBlocks * kVectors;
  static constexpr std::int64_t kCount = kBlocks * kStateColumns;
  Lanes part[kParts];
};

// Loads the first `valid` columns; the others are 0.
template <int kBlocks>
WEFT_INLINE Columns<kBlocks> load_columns(const float *from, std::int64_t valid) {
  using C = Columns<kBlocks>;
  float padded[C::kCount] = {};
  if (valid < C::kCount) {
    std::memcpy(padded, from, static_cast<std::size_t>(valid) * sizeof(float));
    from = padded;
  }
  C columns;
  for (int n = 0; n < C::kParts; ++n) columns.part[n] = load(from + n * kLanes);
  return columns;
}

template <int kBlocks>
WEFT_INLINE void store_columns(const Columns<kBlocks> &columns, float *to, std::int64_t valid) {
  using C = Columns<kBlocks>;
  float padded[C::kCount];
  float *const whole = valid < C::kCount ? padded : to;
  for (int n = 0; n < C::kParts; ++n) store(whole + n * kLanes, columns.part[n]);
  if (valid < C::kCount) std::memcpy(to, padded, static_cast<std::size_t>(valid) * sizeof(float));
}

// Where a part of row `i` is in blocks of `size` floats.
WEFT_INLINE std::int64_t part_at(std::int64_t size, std::int64_t i, int part) {
  return part / kVectors * size + i * kStateColumns + part % kVectors * kLanes;
}

template <int kBlocks>
WEFT_INLINE Columns<kBlocks> load_row(const float *blocks, std::int64_t size, std::int64_t i) {
  Columns<kBlocks> columns;
  for (int n = 0; n < Columns<kBlocks>::kParts; ++n) columns.part[n] = load(blocks + part_at(size, i, n));
  return columns;
}

template <int kBlocks>
WEFT_INLINE void store_row(const Columns<kBlocks> &columns, float *blocks, std::int64_t size, std::int64_t i) {
  for (int n = 0; n < Columns<kBlocks>::kParts; ++n) store(blocks + part_at(size, i, n), columns.part[n]);
}

// The place of blocks: their head, first value dimension, and number of value dimensions.
struct Place {
  std::int64_t head, key_head, column, valid;
};

template <int kBlocks>
WEFT_INLINE Place place_of(const RecurrentCache &cache, std::int64_t block) {
  const std::int64_t blocks = blocks_of(cache), head = block / blocks, column = block % blocks * kStateColumns;
  return {head, head / (cache.heads / cache.key_heads), column,
          std::min(Columns<kBlocks>::kCount, cache.value_size - column)};
}

// The decay of a token in blocks.
template <Decay kDecay, int kBlocks>
struct Decays {
  using C = Columns<kBlocks>;
  const float *decay;  // of the head; for kElement of the columns
  const float *rates;  // of the columns, for kElement
  std::int64_t rates_row, valid;
  C step;

  WEFT_INLINE Decays(const float *token, const float *all_rates, const RecurrentCache &cache, const Place &place) {
    rates = nullptr, rates_row = cache.value_size, valid = place.valid;
    if constexpr (kDecay == Decay::kHead) {
      decay = token + place.head;
      for (int n = 0; n < C::kParts; ++n) step.part[n] = spread(*decay);
    } else if constexpr (kDecay == Decay::kKey) {
      decay = token + place.head * cache.key_size;
    } else {
      decay = token + place.head * cache.value_size + place.column;
      step = load_columns<kBlocks>(decay, valid);
      rates = all_rates + place.head * cache.key_size * cache.value_size + place.column;
    }
  }
  // The decay of key dimension `i`.
  WEFT_INLINE C at(std::int64_t i) const {
    if constexpr (kDecay == Decay::kHead) return step;
    C columns;
    if constexpr (kDecay == Decay::kKey) {
      for (int n = 0; n < C::kParts; ++n) columns.part[n] = spread(decay[i]);
    } else {
      columns = load_columns<kBlocks>(rates + i * rates_row, valid);
      float powers[C::kCount];
      for (int n = 0; n < C::kParts; ++n) store(powers + n * kLanes, columns.part[n] * step.part[n]);
      for (std::int64_t n = 0; n < C::kCount; ++n) powers[n] = vector_exp(powers[n]);
      columns = load_columns<kBlocks>(powers, C::kCount);
    }
    return columns;
  }
};

// Sums over the key dimensions have two parts: of the even ones and of the odd ones.
template <int kBlocks>
struct Sum {
  Columns<kBlocks> halves[2];

  WEFT_INLINE Sum() : halves{} {}
  WEFT_INLINE void add(int half, float weight, const Columns<kBlocks> &x) {
    Lanes *sums = halves[half].part;
    for (int n = 0; n < Columns<kBlocks>::kParts; ++n) sums[n] = multiply_add(spread(weight), x.part[n], sums[n]);
  }
  WEFT_INLINE Columns<kBlocks> total() const {
    Columns<kBlocks> columns;
    for (int n = 0; n < Columns<kBlocks>::kParts; ++n) columns.part[n] = halves[0].part[n] + halves[1].part[n];
    return columns;
  }
};

// Calls fn(i, i % 2) for each key dimension. The second is a constant, so that sums stay in registers.
template <class F>
WEFT_INLINE void for_keys(std::int64_t key_size, F &&fn) {
  std::int64_t i = 0;
  for (; i + 1 < key_size; i += 2) fn(i, std::integral_constant<int, 0>()), fn(i + 1, std::integral_constant<int, 1>());
  if (i < key_size) fn(i, std::integral_constant<int, 0>());
}

// Returns decay * s + k u.
template <int kBlocks>
WEFT_INLINE Columns<kBlocks> updated(const Columns<kBlocks> &s, const Columns<kBlocks> &decay, float k,
                                     const Columns<kBlocks> &u) {
  Columns<kBlocks> next;
  for (int n = 0; n < Columns<kBlocks>::kParts; ++n)
    next.part[n] = multiply_add(spread(k), u.part[n], s.part[n] * decay.part[n]);
  return next;
}

// Applies drafts first..first + count-1, at most kDraftsAtOnce: to = the state after them. With `kSees`, returns what
// `weights` see of it.
constexpr std::int64_t kDraftsAtOnce = 4;
template <Decay kDecay, int kBlocks, bool kSees>
WEFT_INLINE Columns<kBlocks> apply_drafts(const RecurrentCache &cache, const float *rates, std::int64_t slot,
                                          std::int64_t first, std::int64_t count, const Place &place, const float *from,
                                          float *to, const float *weights) {
  const std::int64_t size = cache.key_size * kStateColumns;
  const float *keys[kDraftsAtOnce], *decays[kDraftsAtOnce];
  Columns<kBlocks> values[kDraftsAtOnce];
  for (std::int64_t d = 0; d < count; ++d) {
    const std::int64_t at = slot * cache.slot_row + (first + d) * cache.draft_row;
    keys[d] = cache.key + at + place.key_head * cache.key_size, decays[d] = cache.decay + at;
    values[d] = load_columns<kBlocks>(cache.value + at + place.head * cache.value_size + place.column, place.valid);
  }
  Sum<kBlocks> sum;
  for_keys(cache.key_size, [&](std::int64_t i, auto half) {
    auto s = load_row<kBlocks>(from, size, i);
    for (std::int64_t d = 0; d < count; ++d)
      s = updated(s, Decays<kDecay, kBlocks>(decays[d], rates, cache, place).at(i), keys[d][i], values[d]);
    store_row(s, to, size, i);
    if constexpr (kSees) sum.add(half, weights[i], s);
  });
  return sum.total();
}

// Returns S^T weights.
template <int kBlocks>
WEFT_INLINE Columns<kBlocks> seen(const float *state, const float *weights, std::int64_t key_size) {
  Sum<kBlocks> sum;
  const std::int64_t size = key_size * kStateColumns;
  for_keys(key_size, [&](std::int64_t i, auto half) { sum.add(half, weights[i], load_row<kBlocks>(state, size, i)); });
  return sum.total();
}

// Goes on by one token: to = the state after it, unless `kStores` is false. Returns its output. With `kSees`, `next` is
// what `next_weights`, the next token's, see of the state.
template <Decay kDecay, int kBlocks, bool kStores, bool kSees>
WEFT_INLINE Columns<kBlocks> advance(const float *from, float *to, const Decays<kDecay, kBlocks> &decays,
                                     const float *k, const float *q, const Columns<kBlocks> &u, std::int64_t key_size,
                                     const float *next_weights, Columns<kBlocks> &next) {
  Sum<kBlocks> out, see;
  const std::int64_t size = key_size * kStateColumns;
  for_keys(key_size, [&](std::int64_t i, auto half) {
    const auto s = updated(load_row<kBlocks>(from, size, i), decays.at(i), k[i], u);
    if constexpr (kStores) store_row(s, to, size, i);
    out.add(half, q[i], s);
    if constexpr (kSees) see.add(half, next_weights[i], s);
  });
  if constexpr (kSees) next = see.total();
  return out.total();
}

// Returns the weights with which a token sees the state before it: its key, times the decay if each key dimension has
// one. The decay of a head is applied to the sum.
template <Decay kDecay>
WEFT_INLINE const float *weights_of(const RecurCall &call, const Place &place, std::int64_t token, float *scratch) {
  const float *k = call.k + token * call.k_row + place.key_head * call.cache.key_size;
  if constexpr (kDecay != Decay::kKey) return k;
  const float *decay = call.decay + token * call.decay_row + place.head * call.cache.key_size;
  for (std::int64_t i = 0; i < call.cache.key_size; ++i) scratch[i] = k[i] * decay[i];
  return scratch;
}

// Computes kBlocks blocks of a chain, from `block` on. `scratch` has room for these blocks and key_size floats.
template <Decay kDecay, bool kDelta, int kBlocks>
WEFT_INLINE void recur_blocks(const RecurCall &call, const Chain &chain, const ChainRow *rows, std::int64_t block,
                              float *scratch) {
  static_assert(!(kDelta && kDecay == Decay::kElement));
  using C = Columns<kBlocks>;
  const RecurrentCache &cache = call.cache;
  const std::int64_t keys = cache.key_size, size = keys * kStateColumns;
  const Place place = place_of<kBlocks>(cache, block);
  float *const held = scratch, *const weights = scratch + kBlocks * size;
  float *const target = cache.base + chain.target * cache.base_row + block * size;
  const float *from = held;
  if (chain.source < 0)
    std::fill_n(held, kBlocks * size, 0.0f);
  else
    from = cache.base + chain.source * cache.base_row + block * size;
  C see{};
  const float *first_weights = weights_of<kDecay>(call, place, rows[chain.begin].first, weights);
  for (std::int64_t draft = 0; draft < chain.owed; draft += kDraftsAtOnce, from = held)
    see = apply_drafts<kDecay, kBlocks, kDelta>(cache, call.rates, chain.slot, draft,
                                                std::min(kDraftsAtOnce, chain.owed - draft), place, from, held,
                                                first_weights);
  for (std::int64_t r = chain.begin; r < chain.end; ++r) {
    const ChainRow &row = rows[r];
    const bool is_last_row = r + 1 == chain.end, has_seen = r == chain.begin && chain.owed > 0;
    if (kDelta && !has_seen) see = seen<kBlocks>(from, weights_of<kDecay>(call, place, row.first, weights), keys);
    for (std::int64_t t = 0; t < row.count; ++t) {
      const std::int64_t token = row.first + t;
      const bool is_last = t + 1 == row.count;
      const Decays<kDecay, kBlocks> decays(call.decay + token * call.decay_row, call.rates, cache, place);
      const float *k = call.k + token * call.k_row + place.key_head * keys;
      const float *q = call.q + token * call.q_row + place.key_head * keys;
      C u = load_columns<kBlocks>(call.v + token * call.v_row + place.head * cache.value_size + place.column,
                                  place.valid);
      if constexpr (kDelta) {
        const Lanes beta = spread(call.beta[token * call.beta_row + place.head]);
        for (int n = 0; n < C::kParts; ++n) {
          const Lanes known = kDecay == Decay::kHead ? see.part[n] * decays.step.part[n] : see.part[n];
          u.part[n] = beta * (u.part[n] - known);
        }
      }
      if (row.is_speculative && t > 0 && t <= cache.drafts) {
        float *kept = cache.value + chain.slot * cache.slot_row + (t - 1) * cache.draft_row;
        store_columns(u, kept + place.head * cache.value_size + place.column, place.valid);
      }
      // The state after the token is the target, is needed for the next token only, or is not needed at all.
      float *to = held;
      if (row.is_speculative ? t == 0 : is_last && (is_last_row || row.saves >= 0)) to = target;
      const bool stores = !(row.is_speculative && is_last && t > 0);
      C out;
      if (!stores) {
        out = advance<kDecay, kBlocks, false, false>(from, nullptr, decays, k, q, u, keys, nullptr, see);
      } else if (is_last || !kDelta) {
        out = advance<kDecay, kBlocks, true, false>(from, to, decays, k, q, u, keys, nullptr, see);
      } else {
        const float *next = weights_of<kDecay>(call, place, token + 1, weights);
        out = advance<kDecay, kBlocks, true, true>(from, to, decays, k, q, u, keys, next, see);
      }
      from = to;
      store_columns(out, call.out + (token * cache.heads + place.head) * cache.value_size + place.column, place.valid);
    }
    if (row.saves >= 0)
      std::memcpy(cache.base + row.saves * cache.base_row + block * size, from,
                  static_cast<std::size_t>(kBlocks * size) * sizeof(float));
  }
}

// Computes up to kMostTogether blocks of a chain.
template <Decay kDecay, bool kDelta>
WEFT_INLINE void recur_some(const RecurCall &call, const Chain &chain, const ChainRow *rows, std::int64_t block,
                            std::int64_t count, float *scratch) {
  if (count == kMostTogether) return recur_blocks<kDecay, kDelta, kMostTogether>(call, chain, rows, block, scratch);
  for (std::int64_t n = 0; n < count; ++n) recur_blocks<kDecay, kDelta, 1>(call, chain, rows, block + n, scratch);
}

template <Decay kDecay>
WEFT_INLINE void recur_kind(const RecurCall &call, const Chain &chain, const ChainRow *rows, std::int64_t block,
                            std::int64_t count, float *scratch) {
  if constexpr (kDecay == Decay::kElement) {
    recur_some<kDecay, false>(call, chain, rows, block, count, scratch);
  } else {
    if (call.beta)
      recur_some<kDecay, true>(call, chain, rows, block, count, scratch);
    else
      recur_some<kDecay, false>(call, chain, rows, block, count, scratch);
  }
}

void recur_any(const RecurCall &call, const Chain &chain, const ChainRow *rows, std::int64_t block, std::int64_t count,
               float *scratch) {
  if (call.kind == Decay::kHead) return recur_kind<Decay::kHead>(call, chain, rows, block, count, scratch);
  if (call.kind == Decay::kKey) return recur_kind<Decay::kKey>(call, chain, rows, block, count, scratch);
  recur_kind<Decay::kElement>(call, chain, rows, block, count, scratch);
}

template <Decay kDecay>
WEFT_INLINE void settle_kind(const SettleCall &call, std::int64_t i, std::int64_t block) {
  const RecurrentCache &cache = call.cache;
  const std::int64_t size = cache.key_size * kStateColumns, slot = call.slots[i];
  const Place place = place_of<1>(cache, block);
  const float *from = cache.base + call.target[slot] * cache.base_row + block * size;
  float *to = cache.base + call.targets[i] * cache.base_row + block * size;
  const std::int64_t count = std::clamp<std::int64_t>(call.counts[i], 0, cache.drafts);
  if (count == 0 && from != to) std::memcpy(to, from, static_cast<std::size_t>(size) * sizeof(float));
  for (std::int64_t draft = 0; draft < count; draft += kDraftsAtOnce, from = to)
    apply_drafts<kDecay, 1, false>(cache, call.rates, slot, draft, std::min(kDraftsAtOnce, count - draft), place, from,
                                   to, nullptr);
}

void settle_any(const SettleCall &call, std::int64_t i, std::int64_t block) {
  if (call.kind == Decay::kHead) return settle_kind<Decay::kHead>(call, i, block);
  if (call.kind == Decay::kKey) return settle_kind<Decay::kKey>(call, i, block);
  settle_kind<Decay::kElement>(call, i, block);
}
