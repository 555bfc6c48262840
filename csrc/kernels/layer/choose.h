// The router of a mixture of experts on the CPU, after the product that makes its logits: the experts of each row and
// their weights, and the row's norm, which the experts read. A row's result depends on that row alone.
#pragma once

#include <cstdint>

#include "kernels/layer/linear.h"

namespace weft {

// The numbers of scores in ops/routing.py: of all logits, or for kTopSoftmax of the chosen ones.
enum class Scores : int { kSoftmax = 0, kSigmoid = 1, kTopSoftmax = 2 };

// `chosen` experts have the largest score + bias among the experts of the `top_groups` best groups. Of equals the one
// with the lower index counts as larger. A group is `experts / groups` experts in order; its value is the sum of its
// `group_top` (1 or 2) largest score + bias. A NaN is larger than all numbers. kTopSoftmax chooses by the logits.
//
// An expert's weight is its score, with `renormalizes` divided by the sum of the chosen scores, times `scale`. After
// the chosen experts come `shared` others: experts, experts + 1, .... Their weight is 1, or with `shared_gate` the
// sigmoid of one more logit.
struct Choice {
  Scores scores;
  bool renormalizes, shared_gate;
  float scale;
  std::int64_t experts, chosen, groups, top_groups, group_top, shared;
};

struct ChooseCall {
  const float *logits;  // [rows, experts], or [rows, experts + 1] with shared_gate; logits_row floats between rows
  const float *bias;    // [experts], or null
  std::int64_t *index;  // [rows, chosen + shared]
  float *weights;       // [rows, chosen + shared]
  std::int64_t rows, logits_row;
  Choice choice;
  NormCall norm;  // of the same rows; its out may be null
  int threads;
  const std::int64_t *live;  // or null: only the first *live rows are read and written
};

void choose_cpu(const ChooseCall &call);

}  // namespace weft
