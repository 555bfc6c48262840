// Linear recurrences of a decoder layer on the CPU, in float32, with the state in storage by slot: gated delta rule,
// Mamba 1 and 2, KDA, lightning attention.
//
// A state is undone by a count. The state is kept after the last token whose place in the text is certain, with the
// inputs of the drafts after it. The next call applies the inputs of those drafts that were accepted. That is the same
// arithmetic as the first time, so the bits do not depend on what was a draft.
//
// The bits of a row's result depend on its text alone: neither on the other rows, nor on the threads, nor on how a text
// is cut into calls.
#pragma once

#include <cstdint>

#include "kernels/layer/state_rows.h"

namespace weft {

enum class Decay : int { kHead, kKey, kElement };

constexpr std::int64_t kStateColumns = 16;  // value dimensions of a block

// A layer's storage: base [storage rows, heads, ceil(value_size / kStateColumns), key_size, kStateColumns], and of the
// drafts decay [slots, drafts, heads (, key_size or value_size)], key [slots, drafts, key_heads, key_size] and value
// [slots, drafts, heads, value_size], which is u below. Strides are in floats.
struct RecurrentCache {
  float *base, *decay, *key, *value;
  std::int64_t base_row, slot_row, draft_row, drafts;
  std::int64_t heads, key_heads, key_size, value_size;
};

// For each token of a row and each head h, with the query and the key of head h / (heads / key_heads):
//
//     S = decay * S
//     u = beta * (v - S^T k), or v without `beta`
//     S = S + k u^T
//     out = S^T q
//
// With gate_rates and gate_bias, decay and beta are those before their gates, and queries and keys are not normed yet:
//
//     decay = exp(-gate_rates * softplus(decay + gate_bias)), beta = sigmoid(beta)
//     q = q / sqrt(sum(q^2) + 1e-6) / sqrt(key_size), k = k / sqrt(sum(k^2) + 1e-6)
//
// `decay` is a factor for each head, for each head and key dimension, or exp(decay * rates) with decay [heads,
// value_size] and rates [heads, key_size, value_size]. q_row etc. are the floats between tokens.
struct RecurCall {
  StateRows rows;
  RecurrentCache cache;
  const float *q, *k, *v, *decay;
  const float *beta, *rates;            // or null
  const float *gate_rates, *gate_bias;  // [heads], or null; with beta and Decay::kHead
  float *out;                           // [tokens, heads, value_size]
  std::int64_t q_row, k_row, v_row, decay_row, beta_row;
  Decay kind;
  int threads;
};

void recur_cpu(const RecurCall &call);

// Writes the states of slots[i], with the inputs of the first counts[i] drafts applied, to storage rows targets[i].
struct SettleCall {
  RecurrentCache cache;
  const float *rates;  // or null
  const std::int64_t *target, *slots, *targets, *counts;
  std::int64_t entries, num_slots;
  Decay kind;
  int threads;
};

void settle_recurrence_cpu(const SettleCall &call);

}  // namespace weft
