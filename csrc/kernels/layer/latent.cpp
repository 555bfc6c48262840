#include "kernels/layer/latent.h"

#include <algorithm>
#include <vector>

#include "kernels/layer/live.h"
#include "kernels/layer/panels.h"
#include "support/kernel_threads.h"

namespace weft {
namespace {

constexpr std::int64_t kMaxSplitRows = 4 * kAmxRowBlock;  // more would need more scratch memory

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

LinearCall linear_of(const HeadsCall &call, std::int64_t head) {
  const std::int64_t bytes = call.dtype == DType::kFloat32 ? 4 : 2;
  LinearCall linear{};
  linear.x = call.x + head * call.x_head, linear.out = call.out + head * call.out_head;
  linear.panels = static_cast<const char *>(call.panels) +
                  head * ceil_div(call.outputs, kPanel) * panel_size(call.inputs, call.tiled) * bytes;
  linear.dtype = call.dtype, linear.tiled = call.tiled;
  linear.rows = call.rows, linear.inputs = call.inputs, linear.outputs = call.outputs;
  linear.x_row = call.x_row, linear.out_row = call.out_row;
  return linear;
}

// Multiplies all rows, and calls after(head, begin, end) once for each head and row, for rows begin..end-1.
template <class F>
void multiply(const HeadsCall &call, F &&after) {
  static thread_local std::vector<std::uint16_t> callers_split;
  std::vector<std::uint16_t> &split = callers_split;  // lambdas must not name a thread_local: it would be the worker's
  if (call.rows == 0) return;
  const Kernels kernels = kernels_for(call.dtype, call.tiled);
  const std::int64_t group = group_of(call.rows), groups = ceil_div(call.rows, group);
  const std::int64_t split_of_head = groups * split_size(group, call.inputs);
  const auto rows_of_head = [&](std::int64_t head) -> Rows {
    return {call.x + head * call.x_head,
            call.rows,
            call.inputs,
            call.x_row,
            kernels.amx ? split.data() + head * split_of_head : nullptr,
            group};
  };
  if (kernels.amx) {
    split.resize(size(call.heads * split_of_head));
    for_rows(call.heads * groups, call.threads, 4 * group * call.inputs, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int64_t head = t / groups, first = t % groups;
        kernels.amx->split_rows(rows_of_head(head), first, first + 1, split.data() + head * split_of_head);
      }
    });
  }
  const std::int64_t block = even_block(call.rows, kMaxRowBlock, kernels.amx ? kAmxRowBlock : kTileRows);
  const std::int64_t blocks = ceil_div(call.rows, block), panels = ceil_div(call.outputs, kPanel);
  const std::int64_t block_rows = std::min(block, call.rows);
  const std::int64_t bytes = call.dtype == DType::kFloat32 ? 4 : 2,
                     products = kernels.amx ? block_rows / 2 : block_rows;
  for_workers(call.heads * blocks * panels, call.threads, kPanel * call.inputs * (bytes + products), [&](Share &share) {
    static thread_local std::vector<float> memory;
    memory.resize(size(panel_scratch(block_rows, call.inputs, kernels)));
    float *scratch = aligned(memory.data());
    for (std::int64_t begin, end; share.next(begin, end);) {
      for (std::int64_t task = begin; task < end; ++task) {
        // The panels of a head and the rows of a block stay in the cache.
        const std::int64_t panel = task % panels, head = task / panels / blocks, first = task / panels % blocks * block;
        const std::int64_t count = std::min(block, call.rows - first);
        kernels.multiply_panels(rows_of(linear_of(call, head), first, count), rows_of(rows_of_head(head), first, count),
                                scratch, panel, panel + 1);
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

// Multiplies the live rows in parts of at most kMaxSplitRows.
template <class F>
void multiply_parts(const HeadsCall &call, F &&after) {
  const std::int64_t rows = live_rows(call.rows, call.live);
  for (std::int64_t done = 0; done < rows; done += kMaxSplitRows) {
    multiply(rows_of(call, done, std::min(kMaxSplitRows, rows - done)),
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
  if (!call.up.panels) return absorb(call);
  static thread_local std::vector<float> memory;  // of the uncompressed queries
  const std::int64_t rows = live_rows(call.queries.rows, call.queries.live), width = call.up.outputs;
  memory.resize(std::max(memory.size(), size(std::min(rows, kMaxSplitRows) * width)));
  for (std::int64_t done = 0; done < rows; done += kMaxSplitRows) {
    const std::int64_t count = std::min(kMaxSplitRows, rows - done);
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
