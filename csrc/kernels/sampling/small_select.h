// Truncation on the CPU when few logits remain: it bisects their keys, which is faster than clearing and reading a
// histogram. Counts and masses are the same, so the result is the same.
#pragma once

#include "kernels/columns.h"
#include "kernels/sampling/truncation_rule.h"

namespace weft {

class FewKeys {
 public:
  WEFT_INLINE void clear() { count_ = 0; }

  // Adds the logits of a block that are in the range. Returns false if there are too many in all.
  WEFT_INLINE bool take_block(const float *x, KeyRange range) {
    std::uint32_t key[kBlock], inside = 0;
    for (int j = 0; j < kBlock; ++j) {
      key[j] = key_of(x[j]);
      inside |= range.holds(key[j]);
    }
    if (!inside) return true;
    int count = count_;
    for (int j = 0; j < kBlock; ++j) {
      // Branch-free: every logit is stored, and only one in the range advances `count`.
      x_[count] = x[j];
      keys_[count] = key[j];
      count += range.holds(key[j]);
    }
    count_ = count;
    return count <= kMost;
  }

  // Computes each logit's amount (its mass, or 1), and returns the sum.
  template <bool kMass>
  WEFT_INLINE std::uint64_t weigh(float top, float scale) {
    if constexpr (kMass) {
      for (int n = 0; n < count_; ++n) masses_[n] = mass_of(x_[n], top, scale);
    }
    return sum_from<kMass>(0);
  }

  // Returns the largest key such that the logits with this key or a higher one have at least `wanted` in sum. `wanted`
  // is at most the sum over the whole range.
  template <bool kMass>
  WEFT_INLINE std::uint32_t select(KeyRange range, std::uint64_t wanted) const {
    while (range.low < range.high) {
      const std::uint32_t middle = range.high - (range.high - range.low) / 2;
      if (sum_from<kMass>(middle) >= wanted) {
        range.low = middle;
      } else {
        range.high = middle - 1;
      }
    }
    return range.low;
  }

 private:
  static constexpr int kMost = 256;

  template <bool kMass>
  WEFT_INLINE std::uint64_t sum_from(std::int64_t key) const {
    std::uint64_t sum = 0;
    for (int n = 0; n < count_; ++n) sum += keys_[n] >= key ? kMass ? masses_[n] : 1 : 0;
    return sum;
  }

  int count_ = 0;
  float x_[kMost + kBlock];
  std::int64_t keys_[kMost + kBlock];  // as wide as masses_, so that a comparison of keys is a vector mask for them
  std::uint64_t masses_[kMost + kBlock];
};

}  // namespace weft
