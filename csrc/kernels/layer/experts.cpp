#include "kernels/layer/experts.h"

#include <algorithm>
#include <vector>

#include "kernels/layer/live.h"
#include "kernels/layer/panels.h"
#include "support/instruction_set.h"
#include "support/kernel_threads.h"

namespace weft {
namespace {

// Mean number of rows of an expert in a chunk of tokens. More would need more scratch memory; fewer would read the
// weights too often.
constexpr std::int64_t kRowsPerExpert = 64;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

// The rows of a chunk that chose one expert: `count` of the sorted rows, from `first` on.
struct Group {
  std::int64_t expert, first, count;
  // How a product divides them: tasks of one panel and at most `block` rows, and units of prepared rows, whose bytes
  // begin at `prepared`.
  std::int64_t block, first_task, first_prepared, prepared;
};

// Working memory of a calling thread, kept from call to call.
struct Scratch {
  std::vector<std::int64_t> starts, order, places;
  std::vector<Group> groups;
  std::vector<float> hidden, inner;
  std::vector<char> prepared;
};

// Sorts the choices of a chunk by expert, and lists the experts with rows. order[p] is the row of sorted row p;
// places[row * chosen + j] is the sorted row of a choice, or -1 if its index is no expert. Returns the number of sorted
// rows.
std::int64_t sort_choices(const ExpertsCall &call, Scratch &s) {
  const std::int64_t choices = call.rows * call.chosen;
  const auto expert_of = [&](std::int64_t c) { return call.index[c] - call.first; };
  const auto is_expert = [&](std::int64_t e) { return e >= 0 && e < call.experts; };
  s.starts.assign(size(call.experts + 1), 0);
  for (std::int64_t c = 0; c < choices; ++c)
    if (is_expert(expert_of(c))) ++s.starts[size(expert_of(c) + 1)];
  s.groups.clear();
  for (std::int64_t e = 0; e < call.experts; ++e) {
    const std::int64_t first = s.starts[size(e)], count = s.starts[size(e + 1)];
    if (count) s.groups.push_back({e, first, count, 0, 0, 0, 0});
    s.starts[size(e + 1)] += first;
  }
  s.order.resize(size(choices)), s.places.resize(size(choices));
  const std::int64_t total = s.starts.back();
  for (std::int64_t c = 0; c < choices; ++c) {
    const bool valid = is_expert(expert_of(c));
    const std::int64_t place = valid ? s.starts[size(expert_of(c))]++ : -1;
    s.places[size(c)] = place;
    if (valid) s.order[size(place)] = c / call.chosen;
  }
  return total;
}

// One of the two products of all experts: sorted rows `x` [total, inputs] times each expert's panels.
struct Product {
  const Part *parts;
  int num_parts;
  const float *bias;  // or null
  const float *x;
  float *out;
  std::int64_t inputs, outputs;
  bool gated;
  Activation activation;
};

// Returns the product of the rows of a group.
LinearCall linear_of(const Product &p, const Group &group) {
  const std::int64_t columns = (p.gated ? 2 : 1) * p.outputs;
  LinearCall linear{};
  linear.x = p.x + group.first * p.inputs, linear.out = p.out + group.first * p.outputs;
  for (int part = 0; part < p.num_parts; ++part) {
    const std::int64_t panels = ceil_div(p.outputs, kPanel) * (p.gated && p.num_parts == 1 ? 2 : 1);
    linear.parts[part] = p.parts[part];
    linear.parts[part].panels =
        static_cast<const char *>(p.parts[part].panels) +
        group.expert * panels * panel_bytes(p.parts[part].format, p.parts[part].activations, p.inputs);
  }
  linear.num_parts = p.num_parts;
  linear.bias = p.bias ? p.bias + group.expert * columns : nullptr;
  linear.gated = p.gated, linear.activation = p.activation;
  linear.rows = group.count, linear.inputs = p.inputs, linear.outputs = p.outputs;
  linear.x_row = p.inputs, linear.out_row = p.outputs;
  return linear;
}

// Calls fn(group, begin, end) for the parts of [begin, end) that belong to each group. `start` is the member with a
// group's first number.
template <class F>
void for_groups(const std::vector<Group> &groups, std::int64_t Group::*start, std::int64_t begin, std::int64_t end,
                F &&fn) {
  auto group = std::upper_bound(groups.begin(), groups.end(), begin,
                                [=](std::int64_t number, const Group &g) { return number < g.*start; });
  while (begin < end) {
    const Group &these = *(group - 1);
    const std::int64_t last = group == groups.end() ? end : std::min(end, *group.*start);
    fn(these, begin - these.*start, last - these.*start);
    begin = last, ++group;
  }
}

// Multiplies all sorted rows by their experts' panels.
void multiply(const ExpertsCall &call, const Product &p, std::int64_t total, Scratch &s) {
  const LinearCall sample = linear_of(p, s.groups.front());
  const Kernels kernels = kernels_of(sample);
  std::int64_t tasks = 0, units = 0, bytes = 0, most_rows = 0;
  const std::int64_t panels = count_panels(sample);
  const auto inputs_of_group = [&](const Group &g) -> Inputs {
    Inputs in = inputs_of(linear_of(p, g), kernels);
    place(in, kernels, aligned(s.prepared.data()) + g.prepared);
    return in;
  };
  for (Group &g : s.groups) {
    const Inputs in = inputs_of(linear_of(p, g), kernels);
    g.block = row_block(g.count, kMaxRowBlock, kernels);
    g.first_task = tasks, g.first_prepared = units, g.prepared = bytes;
    tasks += panels * ceil_div(g.count, g.block);
    units += units_of(in), bytes += in.bytes;
    most_rows = std::max(most_rows, std::min(g.block, g.count));
  }
  s.prepared.resize(size(bytes + kLineBytes));
  if (kernels.prepare_rows()) {
    for_rows(units, call.threads, prepare_cost(inputs_of(sample, kernels)), [&](std::int64_t begin, std::int64_t end) {
      for_groups(s.groups, &Group::first_prepared, begin, end,
                 [&](const Group &g, std::int64_t first, std::int64_t last) {
                   prepare(inputs_of_group(g), kernels, first, last);
                 });
    });
  }
  const std::int64_t mean_rows = ceil_div(total, static_cast<std::int64_t>(s.groups.size()));
  const std::int64_t cost = panel_cost(std::min(mean_rows, kMaxRowBlock), sample, kernels);
  for_workers(tasks, call.threads, cost, [&](Share &share) {
    static thread_local std::vector<float> memory;
    memory.resize(size(panel_scratch(most_rows, sample, kernels)));
    float *scratch = aligned(memory.data());
    for (std::int64_t begin, end; share.next(begin, end);) {
      for_groups(s.groups, &Group::first_task, begin, end, [&](const Group &g, std::int64_t first, std::int64_t last) {
        const LinearCall linear = linear_of(p, g);
        const Inputs in = inputs_of_group(g);
        const std::int64_t blocks = ceil_div(g.count, g.block);
        for (std::int64_t task = first; task < last; ++task) {
          // In the order of linear.cpp: a panel multiplies all blocks of prepared rows; a block of other rows is
          // multiplied by all panels.
          const std::int64_t panel = kernels.prepare_rows() ? task / blocks : task % panels;
          const std::int64_t row = (kernels.prepare_rows() ? task % blocks : task / panels) * g.block;
          const std::int64_t count = std::min(g.block, g.count - row);
          multiply_panel(rows_of(linear, row, count), panel_at(linear, kernels, panel), rows_of(in, row, count),
                         scratch);
        }
      });
    }
  });
}

// Writes rows begin..end-1: a row's weighted results, added in the order of its choices, and then the residual.
WEFT_MULTIVERSION void combine(const ExpertsCall &call, const float *sorted, const std::int64_t *places,
                               std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kBlock = 256;  // the sums are kept apart from `out`, which may be the residual
  for (std::int64_t r = begin; r < end; ++r) {
    for (std::int64_t first = 0; first < call.hidden; first += kBlock) {
      const std::int64_t count = std::min(kBlock, call.hidden - first);
      float sums[kBlock] = {};
      for (std::int64_t j = 0; j < call.chosen; ++j) {
        const std::int64_t place = places[r * call.chosen + j];
        if (place < 0) continue;
        const float weight = call.weights[r * call.chosen + j], *from = sorted + place * call.hidden + first;
        for (std::int64_t n = 0; n < count; ++n) sums[n] += weight * from[n];
      }
      float *out = call.out + r * call.out_row + first;
      if (call.residual) {
        const float *residual = call.residual + r * call.residual_row + first;
        for (std::int64_t n = 0; n < count; ++n) out[n] = residual[n] + sums[n];
      } else {
        std::copy_n(sums, count, out);
      }
    }
  }
}

void run_chunk(const ExpertsCall &call) {
  static thread_local Scratch callers_scratch;
  Scratch &s = callers_scratch;  // lambdas must not name a thread_local: it would be the worker's
  const std::int64_t total = sort_choices(call, s);
  if (total > 0) {
    s.hidden.resize(size(total * call.hidden)), s.inner.resize(size(total * call.inner));
    float *const sorted = s.hidden.data(), *const inner = s.inner.data();
    for_rows(total, call.threads, 8 * call.hidden, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p)
        std::copy_n(call.x + s.order[size(p)] * call.x_row, call.hidden, sorted + p * call.hidden);
    });
    const Product up{call.up,     call.num_ups, call.up_bias, sorted,         inner,
                     call.hidden, call.inner,   call.gated,   call.activation};
    multiply(call, up, total, s);
    // The sorted inputs are not needed any more, so the results take their place.
    multiply(call, {&call.down, 1, call.down_bias, inner, sorted, call.inner, call.hidden, false, {}}, total, s);
  }
  for_rows(call.rows, call.threads, 8 * call.chosen * call.hidden,
           [&](std::int64_t begin, std::int64_t end) { combine(call, s.hidden.data(), s.places.data(), begin, end); });
}

}  // namespace

void experts_cpu(const ExpertsCall &call) {
  const std::int64_t rows = live_rows(call.rows, call.live);
  const std::int64_t chunk = std::max<std::int64_t>(kRowsPerExpert * call.experts / call.chosen, 1);
  for (std::int64_t first = 0; first < rows; first += chunk) {
    ExpertsCall part = call;
    part.rows = std::min(chunk, rows - first), part.live = nullptr;
    part.x += first * call.x_row, part.out += first * call.out_row;
    if (call.residual) part.residual += first * call.residual_row;
    part.index += first * call.chosen, part.weights += first * call.chosen;
    run_chunk(part);
  }
}

}  // namespace weft
