#include "kernels/layer/latent.h"

#include <algorithm>
#include <vector>

#include "kernels/layer/live.h"
#include "kernels/layer/panels.h"
#include "support/kernel_threads.h"

namespace weft {
namespace {

constexpr std::int64_t kMaxRows = 192;  // at once; more would need more scratch memory

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

LinearCall linear_of(const HeadsCall &call, std::int64_t head) {
  LinearCall linear{};
  linear.x = call.x + head * call.x_head, linear.out = call.out + head * call.out_head;
  const char *panels = static_cast<const char *>(call.panels) +
                       head * ceil_div(call.outputs, kPanel) * panel_bytes(call.format, call.activations, call.inputs);
  linear.parts[0] = {panels, call.format, call.activations, call.outputs};
  linear.num_parts = 1;
  linear.rows = call.rows, linear.inputs = call.inputs, linear.outputs = call.outputs;
  linear.x_row = call.x_row, linear.out_row = call.out_row;
  return linear;
}

// Multiplies all rows, and calls after(head, begin, end) once for each head and row, for rows begin..end-1.
template <class F>
void multiply(const HeadsCall &call, F &&after) {
  static thread_local std::vector<char> callers_memory;
  std::vector<char> &prepared = callers_memory;  // lambdas must not name a thread_local: it would be the worker's
  if (call.rows == 0) return;
  const LinearCall sample = linear_of(call, 0);
  const Kernels kernels = kernels_of(sample);
  const Inputs of_each = inputs_of(sample, kernels);
  const auto inputs_of_head = [&](std::int64_t head) -> Inputs {
    Inputs in = inputs_of(linear_of(call, head), kernels);
    place(in, kernels, aligned(prepared.data()) + head * in.bytes);
    return in;
  };
  prepared.resize(size(call.heads * of_each.bytes + kLineBytes));
  if (kernels.prepare_rows()) {
    const std::int64_t units = units_of(of_each);
    for_rows(call.heads * units, call.threads, prepare_cost(of_each), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) prepare(inputs_of_head(t / units), kernels, t % units, t % units + 1);
    });
  }
  const std::int64_t block = row_block(call.rows, kMaxRowBlock, kernels), blocks = ceil_div(call.rows, block);
  const std::int64_t panels = ceil_div(call.outputs, kPanel), block_rows = std::min(block, call.rows);
  const std::int64_t cost = panel_cost(block_rows, sample, kernels);
  for_workers(call.heads * blocks * panels, call.threads, cost, [&](Share &share) {
    static thread_local std::vector<float> memory;
    memory.resize(size(panel_scratch(block_rows, sample, kernels)));
    float *scratch = aligned(memory.data());
    for (std::int64_t begin, end; share.next(begin, end);) {
      for (std::int64_t task = begin; task < end; ++task) {
        // The panels of a head and the rows of a block stay in the cache.
        const std::int64_t panel = task % panels, head = task / panels / blocks, first = task / panels % blocks * block;
        const std::int64_t count = std::min(block, call.rows - first);
        const LinearCall linear = linear_of(call, head);
        multiply_panel(rows_of(linear, first, count), panel_at(linear, kernels, panel),
                       rows_of(inputs_of_head(head), first, count), scratch);
        if (panel == 0) after(head, first, first + count);
      }
    }
  });
}

// Returns rows first .. first + count - 1.
HeadsCall rows_of(const HeadsCall &call, std::int64_t first, std::int64_t count) {
  HeadsCall part = call;
  part.rows = count, part.live = nullptr;
  part.x += first * call.x_row, part.out += first * call.out_row;
  return part;
}

// Multiplies the live rows in parts of at most kMaxRows.
template <class F>
void multiply_parts(const HeadsCall &call, F &&after) {
  const std::int64_t rows = live_rows(call.rows, call.live);
  for (std::int64_t done = 0; done < rows; done += kMaxRows) {
    multiply(rows_of(call, done, std::min(kMaxRows, rows - done)),
             [&](std::int64_t head, std::int64_t begin, std::int64_t end) { after(head, done + begin, done + end); });
  }
}

// Makes queries from the heads of x, and the key.
void absorb(const LatentCall &call) {
  HeadsCall queries = call.queries;
  queries.x_head = queries.inputs + call.rotated, queries.out_head = queries.outputs + call.rotated;
  multiply_parts(queries, [&](std::int64_t head, std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const float *from = queries.x + n * queries.x_row + head * queries.x_head + queries.inputs;
      std::copy_n(from, call.rotated, queries.out + n * queries.out_row + head * queries.out_head + queries.outputs);
    }
    if (head > 0) return;
    const float *latent = call.latent + begin * call.latent_row;
    float *key = queries.out + begin * queries.out_row + queries.heads * queries.out_head;
    rms_norm_cpu({latent, call.norm, key, end - begin, queries.outputs, call.latent_row, queries.out_row, call.eps});
    for (std::int64_t n = begin; n < end; ++n, latent += call.latent_row, key += queries.out_row)
      std::copy_n(latent + queries.outputs, call.rotated, key + queries.outputs);
  });
}

}  // namespace

void multiply_heads_cpu(const HeadsCall &call) {
  multiply_parts(call, [](std::int64_t, std::int64_t, std::int64_t) {});
}

void latent_queries_cpu(const LatentCall &call) {
  if (!call.up.num_parts) return absorb(call);
  static thread_local std::vector<float> memory;  // of the uncompressed queries
  const std::int64_t rows = live_rows(call.queries.rows, call.queries.live), width = call.up.outputs;
  memory.resize(std::max(memory.size(), size(std::min(rows, kMaxRows) * width)));
  for (std::int64_t done = 0; done < rows; done += kMaxRows) {
    const std::int64_t count = std::min(kMaxRows, rows - done);
    LinearCall up = rows_of(call.up, done, count);
    up.out = memory.data(), up.out_row = width;
    linear_cpu(up);
    LatentCall part = call;
    part.queries = rows_of(call.queries, done, count);
    part.queries.x = up.out, part.queries.x_row = width;
    part.latent += done * call.latent_row;
    absorb(part);
  }
}

}  // namespace weft
