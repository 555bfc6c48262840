// Short causal convolutions over the positions of texts, one for each channel, on the CPU. The last inputs of each slot
// are kept in storage, as recur.h keeps states.
#pragma once

#include <cstdint>

#include "kernels/layer/state_rows.h"

namespace weft {

// A layer's storage: window [storage rows, taps - 1, channels] holds the inputs before the next token, and drafts
// [slots, drafts, channels] the inputs of the drafts after it. Strides are in floats.
struct ConvolutionCache {
  float *window, *inputs;
  std::int64_t window_row, slot_row, draft_row, drafts, channels, taps;
};

// out[n, c] = sum_j weight[c, j] * x[n - taps + 1 + j, c] + bias[c], over the inputs of the same text; those before its
// first token are 0. With `silu`, silu of that. The weight of channel c and tap j is at c * weight_row + j *
// weight_tap.
struct ConvolveCall {
  StateRows rows;
  ConvolutionCache cache;
  const float *x, *weight;
  const float *bias;  // or null
  float *out;         // [tokens, channels]
  std::int64_t x_row, weight_row, weight_tap;
  bool silu;
  int threads;
};

void convolve_cpu(const ConvolveCall &call);

// Writes the windows of slots[i], after the first counts[i] drafts, to storage rows targets[i].
struct SettleWindowCall {
  ConvolutionCache cache;
  const std::int64_t *target, *slots, *targets, *counts;
  std::int64_t entries, num_slots;
};

void settle_window_cpu(const SettleWindowCall &call);

}  // namespace weft
