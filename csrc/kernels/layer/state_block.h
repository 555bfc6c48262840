// The inner loops of recur.cpp, which includes this once for each instruction set (WEFT_TARGET), each time in another
// namespace. So there is no include guard.
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

typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

struct Columns {
  Lanes part[kVectors];
};

WEFT_INLINE Lanes load(const float *from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

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

// Loads the first `valid` columns; the others are 0.
WEFT_INLINE Columns load_columns(const float *from, std::int64_t valid) {
  float padded[kStateColumns] = {};
  if (valid < kStateColumns) {
    std::memcpy(padded, from, static_cast<std::size_t>(valid) * sizeof(float));
    from = padded;
  }
  Columns columns;
  for (int n = 0; n < kVectors; ++n) columns.part[n] = load(from + n * kLanes);
  return columns;
}

WEFT_INLINE void store_columns(const Columns &columns, float *to, std::int64_t valid) {
  if (valid >= kStateColumns) {
    for (int n = 0; n < kVectors; ++n) std::memcpy(to + n * kLanes, &columns.part[n], sizeof(Lanes));
    return;
  }
  float padded[kStateColumns];
  for (int n = 0; n < kVectors; ++n) std::memcpy(padded + n * kLanes, &columns.part[n], sizeof(Lanes));
  std::memcpy(to, padded, static_cast<std::size_t>(valid) * sizeof(float));
}

// The place of a block: head, first value dimension, and the number of value dimensions.
struct Place {
  std::int64_t head, key_head, column, valid;
};

WEFT_INLINE Place place_of(const RecurrentCache &cache, std::int64_t block) {
  const std::int64_t blocks = blocks_of(cache), head = block / blocks, column = block % blocks * kStateColumns;
  return {head, head / (cache.heads / cache.key_heads), column, std::min(kStateColumns, cache.value_size - column)};
}

// The decay of a token in a block.
template <Decay kDecay>
struct Decays {
  const float *decay;  // of the head; for kElement of the block's columns
  const float *rates;  // of the block, for kElement
  std::int64_t rates_row, valid;
  Columns step;

  WEFT_INLINE Decays(const float *token, const float *all_rates, const RecurrentCache &cache, const Place &place) {
    rates = nullptr, rates_row = cache.value_size, valid = place.valid;
    if constexpr (kDecay == Decay::kHead) {
      decay = token + place.head;
      for (int n = 0; n < kVectors; ++n) step.part[n] = spread(*decay);
    } else if constexpr (kDecay == Decay::kKey) {
      decay = token + place.head * cache.key_size;
    } else {
      decay = token + place.head * cache.value_size + place.column;
      step = load_columns(decay, valid);
      rates = all_rates + place.head * cache.key_size * cache.value_size + place.column;
    }
  }
  // The decay of key dimension `i`.
  WEFT_INLINE Columns at(std::int64_t i) const {
    if constexpr (kDecay == Decay::kHead) {
      return step;
    } else if constexpr (kDecay == Decay::kKey) {
      Columns columns;
      for (int n = 0; n < kVectors; ++n) columns.part[n] = spread(decay[i]);
      return columns;
    } else {
      Columns columns = load_columns(rates + i * rates_row, valid);
      float powers[kStateColumns];
      for (int n = 0; n < kVectors; ++n) {
        columns.part[n] *= step.part[n];
        std::memcpy(powers + n * kLanes, &columns.part[n], sizeof(Lanes));
      }
      for (int n = 0; n < kStateColumns; ++n) powers[n] = vector_exp(powers[n]);
      return load_columns(powers, kStateColumns);
    }
  }
};

// Sums over the key dimensions have two parts: of the even ones and of the odd ones.
struct Sum {
  Columns parts[2];

  WEFT_INLINE Sum() : parts{} {}
  WEFT_INLINE void add(std::int64_t i, float weight, const Columns &x) {
    Columns &part = parts[i % 2];
    for (int n = 0; n < kVectors; ++n) part.part[n] = multiply_add(spread(weight), x.part[n], part.part[n]);
  }
  WEFT_INLINE Columns total() const {
    Columns columns;
    for (int n = 0; n < kVectors; ++n) columns.part[n] = parts[0].part[n] + parts[1].part[n];
    return columns;
  }
};

// Calls fn(i) for each key dimension. Pairs let the compiler keep the two parts of a sum in registers.
template <class F>
WEFT_INLINE void for_keys(std::int64_t key_size, F &&fn) {
  std::int64_t i = 0;
  for (; i + 1 < key_size; i += 2) fn(i, std::integral_constant<int, 0>()), fn(i + 1, std::integral_constant<int, 1>());
  if (i < key_size) fn(i, std::integral_constant<int, 0>());
}

// The update of a block's row: decay * s + k u.
WEFT_INLINE Columns updated(const Columns &s, const Columns &decay, float k, const Columns &u) {
  Columns next;
  for (int n = 0; n < kVectors; ++n) next.part[n] = multiply_add(spread(k), u.part[n], s.part[n] * decay.part[n]);
  return next;
}

// to = the state after a draft.
template <Decay kDecay>
WEFT_INLINE void apply_draft(const RecurrentCache &cache, const float *rates, std::int64_t slot, std::int64_t draft,
                             const Place &place, const float *from, float *to) {
  const std::int64_t at = slot * cache.slot_row + draft * cache.draft_row;
  const float *k = cache.key + at + place.key_head * cache.key_size;
  const Columns u = load_columns(cache.value + at + place.head * cache.value_size + place.column, place.valid);
  const Decays<kDecay> decays(cache.decay + at, rates, cache, place);
  for (std::int64_t i = 0; i < cache.key_size; ++i) {
    const Columns s = load_columns(from + i * kStateColumns, kStateColumns);
    store_columns(updated(s, decays.at(i), k[i], u), to + i * kStateColumns, kStateColumns);
  }
}

// Returns S^T k of the decayed state.
template <Decay kDecay>
WEFT_INLINE Columns seen(const float *state, const float *weights, std::int64_t key_size) {
  Sum sum;
  for_keys(key_size, [&](std::int64_t i, auto part) {
    sum.add(part, weights[i], load_columns(state + i * kStateColumns, kStateColumns));
  });
  return sum.total();
}

// Goes on by one token: to = the state after it, unless `to` is null; returns its output. With `next_weights`, `next`
// is what the next token sees of the state.
template <Decay kDecay, bool kStores, bool kSees>
WEFT_INLINE Columns advance(const float *from, float *to, const Decays<kDecay> &decays, const float *k, const float *q,
                            const Columns &u, std::int64_t key_size, const float *next_weights, Columns &next) {
  Sum out, see;
  for_keys(key_size, [&](std::int64_t i, auto part) {
    const Columns s = updated(load_columns(from + i * kStateColumns, kStateColumns), decays.at(i), k[i], u);
    if constexpr (kStores) store_columns(s, to + i * kStateColumns, kStateColumns);
    out.add(part, q[i], s);
    if constexpr (kSees) see.add(part, next_weights[i], s);
  });
  if constexpr (kSees) next = see.total();
  return out.total();
}

// The weights with which a token sees the state before it: k, or k times the decay if each key dimension has its own.
template <Decay kDecay>
WEFT_INLINE const float *weights_of(const RecurCall &call, const Place &place, std::int64_t token, float *scratch) {
  const float *k = call.k + token * call.k_row + place.key_head * call.cache.key_size;
  if constexpr (kDecay != Decay::kKey) return k;
  const float *decay = call.decay + token * call.decay_row + place.head * call.cache.key_size;
  for (std::int64_t i = 0; i < call.cache.key_size; ++i) scratch[i] = k[i] * decay[i];
  return scratch;
}

// Computes a block of a chain. `scratch` has a block and key_size floats.
template <Decay kDecay, bool kDelta>
WEFT_INLINE void recur_block(const RecurCall &call, const Chain &chain, const ChainRow *rows, std::int64_t block,
                             float *scratch) {
  static_assert(!(kDelta && kDecay == Decay::kElement));
  const RecurrentCache &cache = call.cache;
  const std::int64_t keys = cache.key_size, size = keys * kStateColumns;
  const Place place = place_of(cache, block);
  float *const own = scratch, *const weights = scratch + size;
  float *const target = cache.base + chain.target * cache.base_row + block * size;
  const float *from = own;
  if (chain.source < 0)
    std::fill_n(own, size, 0.0f);
  else
    from = cache.base + chain.source * cache.base_row + block * size;
  for (std::int64_t draft = 0; draft < chain.owed; ++draft, from = own)
    apply_draft<kDecay>(cache, call.rates, chain.slot, draft, place, from, own);
  for (std::int64_t r = chain.begin; r < chain.end; ++r) {
    const ChainRow &row = rows[r];
    const bool is_last_row = r + 1 == chain.end;
    Columns see{};
    if constexpr (kDelta) {
      const float *first = weights_of<kDecay>(call, place, row.first, weights);
      see = seen<kDecay>(from, first, keys);
    }
    for (std::int64_t t = 0; t < row.count; ++t) {
      const std::int64_t token = row.first + t;
      const bool is_last = t + 1 == row.count;
      const Decays<kDecay> decays(call.decay + token * call.decay_row, call.rates, cache, place);
      const float *k = call.k + token * call.k_row + place.key_head * keys;
      const float *q = call.q + token * call.q_row + place.key_head * keys;
      Columns u = load_columns(call.v + token * call.v_row + place.head * cache.value_size + place.column, place.valid);
      if constexpr (kDelta) {
        const Lanes beta = spread(call.beta[token * call.beta_row + place.head]);
        for (int n = 0; n < kVectors; ++n) {
          const Lanes known = kDecay == Decay::kHead ? see.part[n] * decays.step.part[n] : see.part[n];
          u.part[n] = beta * (u.part[n] - known);
        }
      }
      if (row.is_speculative && t > 0 && t <= cache.drafts) {
        float *kept = cache.value + chain.slot * cache.slot_row + (t - 1) * cache.draft_row;
        store_columns(u, kept + place.head * cache.value_size + place.column, place.valid);
      }
      // The state after the token is the target, is needed for the next token only, or is not needed at all.
      float *to = own;
      if (row.is_speculative ? t == 0 : is_last && (is_last_row || row.saves >= 0)) to = target;
      const bool stores = !(row.is_speculative && is_last && t > 0);
      Columns out;
      if (!stores) {
        out = advance<kDecay, false, false>(from, nullptr, decays, k, q, u, keys, nullptr, see);
      } else if (is_last || !kDelta) {
        out = advance<kDecay, true, false>(from, to, decays, k, q, u, keys, nullptr, see);
      } else {
        const float *next = weights_of<kDecay>(call, place, token + 1, weights);
        out = advance<kDecay, true, true>(from, to, decays, k, q, u, keys, next, see);
      }
      from = to;
      store_columns(out, call.out + (token * cache.heads + place.head) * cache.value_size + place.column, place.valid);
    }
    if (row.saves >= 0)
      std::memcpy(cache.base + row.saves * cache.base_row + block * size, from,
                  static_cast<std::size_t>(size) * sizeof(float));
  }
}

template <Decay kDecay>
WEFT_INLINE void recur_kind(const RecurCall &call, const Chain &chain, const ChainRow *rows, std::int64_t block,
                            float *scratch) {
  if constexpr (kDecay == Decay::kElement) {
    recur_block<kDecay, false>(call, chain, rows, block, scratch);
  } else {
    if (call.beta)
      recur_block<kDecay, true>(call, chain, rows, block, scratch);
    else
      recur_block<kDecay, false>(call, chain, rows, block, scratch);
  }
}

void recur_any(const RecurCall &call, const Chain &chain, const ChainRow *rows, std::int64_t block, float *scratch) {
  if (call.kind == Decay::kHead) return recur_kind<Decay::kHead>(call, chain, rows, block, scratch);
  if (call.kind == Decay::kKey) return recur_kind<Decay::kKey>(call, chain, rows, block, scratch);
  recur_kind<Decay::kElement>(call, chain, rows, block, scratch);
}

template <Decay kDecay>
WEFT_INLINE void settle_kind(const SettleCall &call, std::int64_t i, std::int64_t block) {
  const RecurrentCache &cache = call.cache;
  const std::int64_t size = cache.key_size * kStateColumns, slot = call.slots[i];
  const Place place = place_of(cache, block);
  const float *from = cache.base + call.target[slot] * cache.base_row + block * size;
  float *to = cache.base + call.targets[i] * cache.base_row + block * size;
  const std::int64_t count = std::clamp<std::int64_t>(call.counts[i], 0, cache.drafts);
  if (count == 0 && from != to) std::memcpy(to, from, static_cast<std::size_t>(size) * sizeof(float));
  for (std::int64_t draft = 0; draft < count; ++draft, from = to)
    apply_draft<kDecay>(cache, call.rates, slot, draft, place, from, to);
}

void settle_any(const SettleCall &call, std::int64_t i, std::int64_t block) {
  if (call.kind == Decay::kHead) return settle_kind<Decay::kHead>(call, i, block);
  if (call.kind == Decay::kKey) return settle_kind<Decay::kKey>(call, i, block);
  settle_kind<Decay::kElement>(call, i, block);
}
