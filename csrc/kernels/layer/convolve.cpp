#include "kernels/layer/convolve.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/vector_exp.h"
#include "support/instruction_set.h"
#include "support/kernel_threads.h"

namespace weft {
namespace {

constexpr std::int64_t kChannels = 512;  // of a task
constexpr float kZeros[kChannels] = {};

struct Scratch {
  std::vector<float> window, weights;
  std::vector<const float *> inputs;
};

Scratch &thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

// out = bias + sum_j weights[j] * inputs[j], for `count` channels. Each tap has `stride` weights.
template <bool kSilu, int kTaps>
WEFT_INLINE void convolve_taps(const float *const *inputs, const float *weights, std::int64_t stride, const float *bias,
                               std::int64_t first, std::int64_t count, float *out) {
  const float *x[kTaps];
  for (int j = 0; j < kTaps; ++j) x[j] = inputs[j] + first;
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC ivdep  // the compiler can't know that the outputs are not among the inputs
#endif
  for (std::int64_t c = 0; c < count; ++c) {
    float sum = bias[c];
    for (int j = 0; j < kTaps; ++j) sum += weights[j * stride + c] * x[j][c];
    out[c] = kSilu ? sum / (1.0f + vector_exp(-sum)) : sum;
  }
}

// The same for any number of taps.
template <bool kSilu>
WEFT_INLINE void convolve_any(const float *const *inputs, const float *weights, std::int64_t stride, std::int64_t taps,
                              const float *bias, std::int64_t first, std::int64_t count, float *out) {
  if (taps == 4) return convolve_taps<kSilu, 4>(inputs, weights, stride, bias, first, count, out);
  if (taps == 3) return convolve_taps<kSilu, 3>(inputs, weights, stride, bias, first, count, out);
  for (std::int64_t c = 0; c < count; ++c) out[c] = bias[c];
  for (std::int64_t j = 0; j < taps; ++j) {
    const float *input = inputs[j] + first, *weight = weights + j * stride;
    for (std::int64_t c = 0; c < count; ++c) out[c] += weight[c] * input[c];
  }
  if (!kSilu) return;
  for (std::int64_t c = 0; c < count; ++c) out[c] = out[c] / (1.0f + vector_exp(-out[c]));
}

WEFT_MULTIVERSION void convolve_token(const float *const *inputs, const float *weights, std::int64_t stride,
                                      std::int64_t taps, const float *bias, std::int64_t first, std::int64_t count,
                                      bool silu, float *out) {
  if (silu) return convolve_any<true>(inputs, weights, stride, taps, bias, first, count, out);
  convolve_any<false>(inputs, weights, stride, taps, bias, first, count, out);
}

// Copies the window before the next token, after `owed` drafts, to `out` [taps - 1, stride]: `count` channels from
// `first` on.
void read_window(const ConvolutionCache &cache, std::int64_t source, std::int64_t slot, std::int64_t owed,
                 std::int64_t first, std::int64_t count, float *out, std::int64_t stride) {
  const std::int64_t kept = cache.taps - 1;
  for (std::int64_t j = 0; j < kept; ++j) {
    const std::int64_t at = owed + j;
    const float *from = at < kept ? cache.window + source * cache.window_row + at * cache.channels
                                  : cache.inputs + slot * cache.slot_row + (at - kept) * cache.draft_row;
    std::memcpy(out + j * stride, from + first, static_cast<std::size_t>(count) * sizeof(float));
  }
}

// Writes the window of `kept` inputs to a storage row.
void write_window(const ConvolutionCache &cache, std::int64_t row, const float *const *inputs, std::int64_t first,
                  std::int64_t count) {
  for (std::int64_t j = 0; j < cache.taps - 1; ++j)
    std::memcpy(cache.window + row * cache.window_row + j * cache.channels + first, inputs[j] + first,
                static_cast<std::size_t>(count) * sizeof(float));
}

// Computes `count` channels of a chain, from `first` on.
void convolve_chain(const ConvolveCall &call, const Chain &chain, const ChainRow *rows, std::int64_t first,
                    std::int64_t count, Scratch &scratch) {
  const ConvolutionCache &cache = call.cache;
  const std::int64_t taps = cache.taps, kept = taps - 1;
  // The window is copied, because its storage may be written before all tokens have read it.
  scratch.window.assign(static_cast<std::size_t>(kept * kChannels), 0.0f);
  if (chain.source >= 0)
    read_window(cache, chain.source, chain.slot, chain.owed, first, count, scratch.window.data(), kChannels);
  std::vector<const float *> &inputs = scratch.inputs;  // the addresses of channel 0
  inputs.clear();
  for (std::int64_t j = 0; j < kept; ++j) inputs.push_back(scratch.window.data() + j * kChannels - first);
  for (std::int64_t r = chain.begin; r < chain.end; ++r)
    for (std::int64_t t = 0; t < rows[r].count; ++t) inputs.push_back(call.x + (rows[r].first + t) * call.x_row);
  const float *weights = call.weight + first * call.weight_row;
  std::int64_t stride = call.weight_tap;
  if (call.weight_row != 1) {
    scratch.weights.resize(static_cast<std::size_t>(taps * kChannels));
    for (std::int64_t j = 0; j < taps; ++j)
      for (std::int64_t c = 0; c < count; ++c)
        scratch.weights[static_cast<std::size_t>(j * kChannels + c)] =
            call.weight[(first + c) * call.weight_row + j * call.weight_tap];
    weights = scratch.weights.data(), stride = kChannels;
  }
  const float *const *at = inputs.data();
  for (std::int64_t r = chain.begin; r < chain.end; ++r) {
    const ChainRow &row = rows[r];
    for (std::int64_t t = 0; t < row.count; ++t, ++at) {
      convolve_token(at, weights, stride, taps, call.bias ? call.bias + first : kZeros, first, count, call.silu,
                     call.out + (row.first + t) * cache.channels + first);
      if (!row.is_speculative) continue;
      if (t == 0) write_window(cache, chain.target, at + 1, first, count);
      if (t > 0 && t <= cache.drafts)
        std::memcpy(cache.inputs + chain.slot * cache.slot_row + (t - 1) * cache.draft_row + first, at[kept] + first,
                    static_cast<std::size_t>(count) * sizeof(float));
    }
    if (!row.is_speculative && r + 1 == chain.end) write_window(cache, chain.target, at, first, count);
    if (row.saves >= 0) write_window(cache, row.saves, at, first, count);
  }
}

}  // namespace

void convolve_cpu(const ConvolveCall &call) {
  const ConvolutionCache &cache = call.cache;
  clear_padding(call.rows, call.out, cache.channels);
  const Chains &all = chains_of(call.rows, cache.drafts);
  const auto num_chains = static_cast<std::int64_t>(all.chains.size());
  if (num_chains == 0) return;
  const std::int64_t pieces = (cache.channels + kChannels - 1) / kChannels;
  const std::int64_t cost = kChannels * cache.taps * (8 + 4 * all.tokens / num_chains);
  for_rows(num_chains * pieces, call.threads, cost, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t u = begin; u < end; ++u) {
      const std::int64_t first = u % pieces * kChannels, count = std::min(kChannels, cache.channels - first);
      convolve_chain(call, all.chains[static_cast<std::size_t>(u / pieces)], all.rows.data(), first, count,
                     thread_scratch());
    }
  });
}

void settle_window_cpu(const SettleWindowCall &call) {
  const ConvolutionCache &cache = call.cache;
  const std::int64_t kept = cache.taps - 1;
  std::vector<float> &window = thread_scratch().window;
  window.resize(static_cast<std::size_t>(kept * cache.channels));
  for (std::int64_t i = 0; i < call.entries; ++i) {
    const std::int64_t slot = call.slots[i];
    if (slot < 0 || slot >= call.num_slots - 1 || call.targets[i] < 0) continue;
    const std::int64_t owed = std::clamp<std::int64_t>(call.counts[i], 0, cache.drafts);
    read_window(cache, call.target[slot], slot, owed, 0, cache.channels, window.data(), cache.channels);
    std::copy(window.begin(), window.end(), cache.window + call.targets[i] * cache.window_row);
  }
}

}  // namespace weft
