#include "kernels/mask/token_mask.h"

#include <cstring>

#include "support/instruction_set.h"
#include "support/kernel_threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weft {
namespace {

std::int64_t first_out_of_bounds(const RowList &rows, std::int64_t count, std::int64_t limit) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = rows.at(i);
    if (row < 0 || row >= limit) return i;
  }
  return -1;
}

// ---- one word: 32 columns --------------------------------------------------------------------------------------

// Vectors have 16 bytes, which SSE2 and NEON support. In group g of a word's columns, lane j tests bit g * lanes + j of
// the word.
typedef std::uint32_t Lanes32 __attribute__((vector_size(16)));
typedef std::uint16_t Lanes16 __attribute__((vector_size(16)));

void block_word(std::uint32_t *p, std::uint32_t allowed, std::uint32_t neg_inf) {
  if (allowed == 0xffffffffu) return;
  constexpr Lanes32 kBit = {1, 2, 4, 8};
  const Lanes32 v = Lanes32{} + neg_inf;
  for (int group = 0; group < 8; ++group, p += 4) {
    Lanes32 x = v;
    if (allowed) std::memcpy(&x, p, sizeof x);
    const Lanes32 keep = reinterpret_cast<Lanes32>(((Lanes32{} + (allowed >> (4 * group))) & kBit) != 0);
    x = (x & keep) | (v & ~keep);
    std::memcpy(p, &x, sizeof x);
  }
}

void block_word(std::uint16_t *p, std::uint32_t allowed, std::uint16_t neg_inf) {
  if (allowed == 0xffffffffu) return;
  constexpr Lanes16 kBit = {1, 2, 4, 8, 16, 32, 64, 128};
  const Lanes16 v = Lanes16{} + neg_inf;
  for (int group = 0; group < 4; ++group, p += 8) {
    Lanes16 x = v;
    if (allowed) std::memcpy(&x, p, sizeof x);
    const auto bits = static_cast<std::uint16_t>(allowed >> (8 * group) & 0xffu);
    const Lanes16 keep = reinterpret_cast<Lanes16>(((Lanes16{} + bits) & kBit) != 0);
    x = (x & keep) | (v & ~keep);
    std::memcpy(p, &x, sizeof x);
  }
}

#if defined(__x86_64__)
#define WEFT_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))
#define WEFT_AVX2 __attribute__((target("avx2")))

WEFT_AVX2 inline void block_word_avx2(std::uint32_t *p, std::uint32_t allowed, std::uint32_t neg_inf) {
  if (allowed == 0xffffffffu) return;
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i v = _mm256_set1_epi32(static_cast<int>(neg_inf));
  for (int group = 0; group < 4; ++group, p += 8) {
    auto *at = reinterpret_cast<__m256i *>(p);
    const __m256i bits = _mm256_set1_epi32(static_cast<int>(allowed >> (8 * group)));
    const __m256i keep = _mm256_cmpeq_epi32(_mm256_and_si256(bits, bit), bit);
    _mm256_storeu_si256(at, allowed ? _mm256_blendv_epi8(v, _mm256_loadu_si256(at), keep) : v);
  }
}

WEFT_AVX2 inline void block_word_avx2(std::uint16_t *p, std::uint32_t allowed, std::uint16_t neg_inf) {
  if (allowed == 0xffffffffu) return;
  const __m256i bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, -32768);
  const __m256i v = _mm256_set1_epi16(static_cast<short>(neg_inf));
  for (int group = 0; group < 2; ++group, p += 16) {
    auto *at = reinterpret_cast<__m256i *>(p);
    const __m256i bits = _mm256_set1_epi16(static_cast<short>(allowed >> (16 * group)));
    const __m256i keep = _mm256_cmpeq_epi16(_mm256_and_si256(bits, bit), bit);
    _mm256_storeu_si256(at, allowed ? _mm256_blendv_epi8(v, _mm256_loadu_si256(at), keep) : v);
  }
}

WEFT_AVX512 inline void block_word_avx512(std::uint32_t *p, std::uint32_t allowed, std::uint32_t neg_inf) {
  if (allowed == 0xffffffffu) return;
  const __m512i v = _mm512_set1_epi32(static_cast<int>(neg_inf));
  const std::uint32_t blocked = ~allowed;
  if (allowed == 0) {
    _mm512_storeu_si512(p, v);
    _mm512_storeu_si512(p + 16, v);
  } else {
    _mm512_mask_storeu_epi32(p, static_cast<__mmask16>(blocked), v);
    _mm512_mask_storeu_epi32(p + 16, static_cast<__mmask16>(blocked >> 16), v);
  }
}

WEFT_AVX512 inline void block_word_avx512(std::uint16_t *p, std::uint32_t allowed, std::uint16_t neg_inf) {
  if (allowed == 0xffffffffu) return;
  _mm512_mask_storeu_epi16(p, ~allowed, _mm512_set1_epi16(static_cast<short>(neg_inf)));
}
#endif

// ---- whole words of one row, by instruction set ----------------------------------------------------------------

template <class T>
using BlockWords = void (*)(T *p, const std::uint32_t *allowed, std::int64_t words, T neg_inf);

// Logits are prefetched this many mask words ahead, because a store that misses the cache waits for its line. A word
// that blocks nothing causes no store, so its line is not prefetched.
constexpr std::int64_t kWordsAhead = 8;

template <class T>
[[gnu::always_inline]] inline void fetch_ahead(const T *p, const std::uint32_t *allowed, std::int64_t w,
                                               std::int64_t words) {
  const std::int64_t ahead = w + kWordsAhead;
  if (ahead >= words || allowed[ahead] == 0xffffffffu) return;
  __builtin_prefetch(p + 32 * ahead, 1);
  if constexpr (sizeof(T) == 4) __builtin_prefetch(p + 32 * ahead + 16, 1);
}

template <class T>
void block_words_plain(T *p, const std::uint32_t *allowed, std::int64_t words, T neg_inf) {
  for (std::int64_t w = 0; w < words; ++w) {
    fetch_ahead(p, allowed, w, words);
    block_word(p + 32 * w, allowed[w], neg_inf);
  }
}

#if defined(__x86_64__)
template <class T>
WEFT_AVX2 void block_words_avx2(T *p, const std::uint32_t *allowed, std::int64_t words, T neg_inf) {
  for (std::int64_t w = 0; w < words; ++w) {
    fetch_ahead(p, allowed, w, words);
    block_word_avx2(p + 32 * w, allowed[w], neg_inf);
  }
}

template <class T>
WEFT_AVX512 void block_words_avx512(T *p, const std::uint32_t *allowed, std::int64_t words, T neg_inf) {
  for (std::int64_t w = 0; w < words; ++w) {
    fetch_ahead(p, allowed, w, words);
    block_word_avx512(p + 32 * w, allowed[w], neg_inf);
  }
}
#endif

template <class T>
BlockWords<T> best_block_words() {
#if defined(__x86_64__)
  if (instruction_set() == InstructionSet::kAvx512) return block_words_avx512<T>;
  if (instruction_set() == InstructionSet::kAvx2) return block_words_avx2<T>;
#endif
  return block_words_plain<T>;
}

// ---- one row ---------------------------------------------------------------------------------------------------

// The mask bits of `count` <= 32 columns of a draft vocabulary, from `column` on. Column c stands for token c + d2t[c].
// Tokens outside the mask are blocked.
std::uint32_t allowed_by_target(const std::uint32_t *mask, std::int64_t words, const std::int64_t *d2t,
                                std::int64_t column, int count) {
  std::uint32_t allowed = 0;
  const auto limit = static_cast<std::uint64_t>(words) * 32;
  for (int j = 0; j < count; ++j) {
    const auto token = static_cast<std::uint64_t>(column + j + d2t[column + j]);  // a negative token becomes huge
    const std::uint32_t bit = token < limit ? mask[token >> 5] >> (token & 31) & 1u : 0u;
    allowed |= bit << j;
  }
  return allowed;
}

// The same for 32 columns.
using AllowedWord = std::uint32_t (*)(const std::uint32_t *mask, std::int64_t words, const std::int64_t *d2t,
                                      std::int64_t column);

std::uint32_t allowed_word_plain(const std::uint32_t *mask, std::int64_t words, const std::int64_t *d2t,
                                 std::int64_t column) {
  return allowed_by_target(mask, words, d2t, column, 32);
}

#if defined(__x86_64__)
// Returns the low halves of eight 64-bit numbers, in order.
WEFT_AVX2 inline __m256i low_halves(__m256i first, __m256i second) {
  const __m256 pairs = _mm256_shuffle_ps(_mm256_castsi256_ps(first), _mm256_castsi256_ps(second), 0x88);
  return _mm256_permute4x64_epi64(_mm256_castps_si256(pairs), 0xd8);
}

WEFT_AVX2 std::uint32_t allowed_word_avx2(const std::uint32_t *mask, std::int64_t words, const std::int64_t *d2t,
                                          std::int64_t column) {
  const __m256i limit = _mm256_set1_epi64x(32 * words), minus_one = _mm256_set1_epi64x(-1);
  const __m256i four = _mm256_set1_epi64x(4);
  __m256i columns = _mm256_add_epi64(_mm256_set1_epi64x(column), _mm256_setr_epi64x(0, 1, 2, 3));
  std::uint32_t allowed = 0;
  for (int j = 0; j < 32; j += 8) {
    const auto *offsets = reinterpret_cast<const __m256i *>(d2t + column + j);
    const __m256i first = _mm256_add_epi64(columns, _mm256_loadu_si256(offsets));
    columns = _mm256_add_epi64(columns, four);
    const __m256i second = _mm256_add_epi64(columns, _mm256_loadu_si256(offsets + 1));
    columns = _mm256_add_epi64(columns, four);
    const __m256i in_mask =
        low_halves(_mm256_and_si256(_mm256_cmpgt_epi64(limit, first), _mm256_cmpgt_epi64(first, minus_one)),
                   _mm256_and_si256(_mm256_cmpgt_epi64(limit, second), _mm256_cmpgt_epi64(second, minus_one)));
    const __m256i token = low_halves(first, second);
    const __m256i word = _mm256_mask_i32gather_epi32(_mm256_setzero_si256(), reinterpret_cast<const int *>(mask),
                                                     _mm256_srli_epi32(token, 5), in_mask, 4);
    const __m256i bit = _mm256_srlv_epi32(word, _mm256_and_si256(token, _mm256_set1_epi32(31)));
    const int eight = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_slli_epi32(bit, 31)));
    allowed |= static_cast<std::uint32_t>(eight) << j;
  }
  return allowed;
}
#endif

AllowedWord best_allowed_word() {
#if defined(__x86_64__)
  if (instruction_set() != InstructionSet::kPlain) return allowed_word_avx2;
#endif
  return allowed_word_plain;
}

template <class T>
void forbid_columns(T *p, std::uint32_t allowed, int count, T neg_inf) {
  for (int j = 0; j < count; ++j) {
    if (!(allowed >> j & 1u)) p[j] = neg_inf;
  }
}

template <class T>
void apply_row(T *p, std::int64_t vocab, const std::uint32_t *mask, std::int64_t words, const std::int64_t *d2t,
               T neg_inf) {
  static const BlockWords<T> block_words = best_block_words<T>();
  static const AllowedWord allowed_word = best_allowed_word();
  if (d2t) {
    std::uint32_t allowed[64];
    for (std::int64_t c = 0; c < vocab;) {
      int n = 0;
      for (; n < 64 && c + 32 * (n + 1) <= vocab; ++n) {
        allowed[n] = allowed_word(mask, words, d2t, c + 32 * n);
      }
      if (n) {
        block_words(p + c, allowed, n, neg_inf);
        c += 32 * n;
      } else {
        const int rest = static_cast<int>(vocab - c);
        forbid_columns(p + c, allowed_by_target(mask, words, d2t, c, rest), rest, neg_inf);
        c = vocab;
      }
    }
    return;
  }
  const std::int64_t whole = vocab / 32 < words ? vocab / 32 : words;
  block_words(p, mask, whole, neg_inf);
  std::int64_t c = 32 * whole;
  if (whole < words && c < vocab) {  // the last word; its padding bits have no meaning
    forbid_columns(p + c, mask[whole], static_cast<int>(vocab - c), neg_inf);
    c = vocab;
  }
  for (; c < vocab; ++c) p[c] = neg_inf;
}

template <class T>
void apply_rows(const ApplyCall &call, int threads, T neg_inf) {
  const Logits &logits = call.logits;
  // Most bits of a row block their token. Finding the bits of a draft vocabulary takes half a nanosecond each.
  const std::int64_t cost = logits.vocab * (static_cast<std::int64_t>(sizeof(T)) / 4 + (call.d2t ? 10 : 0));
  for_rows(logits.rows, threads, cost, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = call.rows.at(i);
      if (call.skips(i, row)) continue;
      const std::uint32_t *mask = call.bitmask.data + row * call.bitmask.stride;
      apply_row(static_cast<T *>(logits.data) + i * logits.stride, logits.vocab, mask, call.bitmask.words, call.d2t,
                neg_inf);
    }
  });
}

}  // namespace

std::int64_t apply_token_bitmask_cpu(const ApplyCall &call, int threads) {
  const std::int64_t bad = first_out_of_bounds(call.rows, call.logits.rows, call.bitmask.rows);
  if (bad >= 0) return bad;
  switch (call.logits.dtype) {
    case DType::kFloat32:
      apply_rows<std::uint32_t>(call, threads, kNegInf32);
      break;
    case DType::kFloat16:
      apply_rows<std::uint16_t>(call, threads, kNegInfHalf);
      break;
    case DType::kBFloat16:
      apply_rows<std::uint16_t>(call, threads, kNegInfBFloat16);
      break;
  }
  return -1;
}

std::int64_t copy_mask_rows_cpu(const CopyCall &call) {
  const std::int64_t bad = first_out_of_bounds(call.rows, call.count, call.mask_rows);
  if (bad >= 0) return bad;
  for (std::int64_t i = 0; i < call.count; ++i) {
    const std::int64_t row = call.rows.at(i);
    call.dst_token_mask[row] = call.src_token_mask[row];
    if (call.dst_temperatures) call.dst_temperatures[row] = call.src_temperatures[row];
    if (!call.src_token_mask[row]) continue;
    std::memcpy(call.dst_masks + row * call.dst_stride, call.src_masks + row * call.src_stride,
                static_cast<std::size_t>(call.words) * sizeof(std::uint32_t));
  }
  return -1;
}

#if defined(WEFT_WITH_CUDA)
const char *cuda_architectures() { return WEFT_CUDA_ARCHITECTURES; }
#else
const char *cuda_architectures() { return ""; }
const char *apply_token_bitmask_cuda(const ApplyCall &, int, void *) { return "built without CUDA"; }
const char *copy_mask_rows_cuda(const CopyCall &, void *) { return "built without CUDA"; }
#endif

}  // namespace weft
