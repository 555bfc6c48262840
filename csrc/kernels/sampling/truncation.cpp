#include "kernels/sampling/truncation.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/columns.h"
#include "kernels/sampling/small_select.h"
#include "kernels/sampling/truncation_rule.h"

namespace weft {
namespace {

// Working memory for one row; each thread has one.
struct Scratch {
  std::vector<float> block_top, order;
  std::uint64_t bins[kBins];
  FewKeys few;
};

template <class T>
struct RowLogits {
  const T *logits;
  std::int64_t vocab;
  const float *block_top;  // the largest of each block
  float top, scale;        // the row's largest; log2(e) / temperature

  // Collects the logits in the range in `few`. Returns false if there are too many.
  WEFT_INLINE bool gather(KeyRange range, FewKeys &few) const {
    float x[kBlock];
    few.clear();
    for (std::int64_t b = 0; b < num_blocks(vocab); ++b) {
      if (key_of(block_top[b]) < range.low) continue;
      load_block(logits, b * kBlock, vocab, x);
      if (!few.take_block(x, range)) return false;
    }
    return true;
  }

  // Adds up the counts or masses in each part of the range, and returns the total. Skips blocks whose largest key is
  // below the range.
  template <bool kMass>
  WEFT_INLINE std::uint64_t histogram(KeyRange range, int shift, std::uint64_t *bins) const {
    std::fill_n(bins, kBins, 0);
    float x[kBlock];
    std::uint32_t part[kBlock];
    std::uint64_t amount[kBlock];
    for (std::int64_t b = 0; b < num_blocks(vocab); ++b) {
      if (key_of(block_top[b]) < range.low) continue;
      load_block(logits, b * kBlock, vocab, x);
      std::uint32_t inside = 0;
      for (int j = 0; j < kBlock; ++j) {
        const std::uint32_t key = key_of(x[j]);
        const bool holds = range.holds(key);
        part[j] = holds ? range.part(key, shift) : kBins;
        inside |= holds;
      }
      if (!inside) continue;
      if constexpr (kMass) {
        for (int j = 0; j < kBlock; ++j) amount[j] = mass_of(x[j], top, scale);
      }
      for (int j = 0; j < kBlock; ++j) {
        if (part[j] < kBins) bins[part[j]] += kMass ? amount[j] : 1;
      }
    }
    std::uint64_t sum = 0;
    for (int part = 0; part < kBins; ++part) sum += bins[part];
    return sum;
  }

  // Returns the largest key for which the logits in the range with this key or a higher one reach the wanted count or
  // mass. Returns 0 if the whole range does not reach it. `wanted` computes the wanted amount from the range's total.
  template <bool kMass, class Wanted>
  WEFT_INLINE std::uint32_t select(KeyRange range, Scratch &scratch, Wanted wanted) const {
    std::uint64_t *bins = scratch.bins, missing = 0;
    for (bool first = true;; first = false) {
      const int shift = range.shift();
      const bool is_few = gather(range, scratch.few);
      const std::uint64_t sum = is_few ? scratch.few.weigh<kMass>(top, scale) : histogram<kMass>(range, shift, bins);
      if (first) missing = wanted(sum);
      if (missing > sum) return 0;
      if (is_few) return scratch.few.select<kMass>(range, missing);
      std::uint32_t part = 0;
      for (; bins[part] < missing; ++part) missing -= bins[part];
      range = range.of_part(part, shift);
      if (shift == 0) return range.high;
    }
  }
};

// A lower bound for the k-th largest key: the k-th largest of the blocks' maxima is at most the k-th largest logit.
std::uint32_t lower_bound_of_kth(const std::vector<float> &block_top, std::int64_t k, std::vector<float> &order) {
  if (k > static_cast<std::int64_t>(block_top.size())) return kLowestKey;
  order = block_top;
  std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), std::greater<>());
  return std::max(key_of(order[static_cast<std::size_t>(k - 1)]), kLowestKey);
}

template <class T>
WEFT_INLINE float row_floor(const Cuts &cuts, const T *logits, std::int64_t vocab, Scratch &scratch) {
  scratch.block_top.resize(static_cast<std::size_t>(num_blocks(vocab)));
  float top = -kInfinity, x[kBlock];
  for (std::int64_t b = 0; b < num_blocks(vocab); ++b) {
    load_block(logits, b * kBlock, vocab, x);
    const float largest = block_max(x);
    scratch.block_top[static_cast<std::size_t>(b)] = largest;
    top = largest > top ? largest : top;
  }
  if (top == -kInfinity) return top;
  const RowLogits<T> row{logits, vocab, scratch.block_top.data(), top, mass_scale(cuts.temperature)};
  std::uint32_t key = 0;
  if (cuts.top_k > 0) {
    const KeyRange range{lower_bound_of_kth(scratch.block_top, cuts.top_k, scratch.order), key_of(top)};
    key = row.template select<false>(range, scratch, [&](std::uint64_t) { return cuts.top_k; });
  }
  if (cuts.by_mass()) {
    const KeyRange range{std::max(key, lowest_with_mass(top, row.scale)), key_of(top)};
    key =
        row.template select<true>(range, scratch, [&](std::uint64_t total) { return wanted_mass(cuts.top_p, total); });
  }
  return cuts.floor(key, top);
}

template <class T>
WEFT_INLINE void truncate_rows(const TruncateCall &call, std::int64_t begin, std::int64_t end) {
  static thread_local Scratch scratch;
  for (std::int64_t i = begin; i < end; ++i) {
    const Cuts &cuts = call.cuts[i];
    call.floor[i] = cuts.any() ? row_floor(cuts, row_of<const T>(call, i), call.logits.vocab, scratch) : -kInfinity;
  }
}

WEFT_BY_INSTRUCTION_SET(truncate, TruncateCall)

}  // namespace

void truncation_floor_cpu(const TruncateCall &call, int threads) {
  static const auto rows = best_truncate_rows();
  for_logits(call, threads, rows);
}

}  // namespace weft
