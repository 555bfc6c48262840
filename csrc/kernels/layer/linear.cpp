#include "kernels/layer/linear.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <type_traits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/floats.h"
#include "kernels/layer/block_codes.h"
#include "kernels/layer/blocks.h"
#include "kernels/layer/int8.h"
#include "kernels/layer/live.h"
#include "kernels/layer/panels.h"
#include "kernels/layer/tile_shapes.h"
#include "kernels/vector_exp.h"
#include "support/instruction_set.h"
#include "support/kernel_threads.h"

namespace weft {
namespace {

constexpr std::int64_t kRowsNormedAtOnce = 8;  // a group of rows that no kernel prepares
// Up to this many rows, each worker prepares (normalises and splits) all inputs for itself. That is cheaper than
// sharing the work and waiting for it.
constexpr std::int64_t kMaxRowsPreparedByEach = 16;
constexpr std::int64_t kMinRowBlock = 36;     // fewer rows would read the weights too often
constexpr std::int64_t kDepthBlock = 1024;    // inputs whose weights stay in the cache while several tiles read them
constexpr std::int64_t kMinTilesToWiden = 5;  // from which it pays to widen a panel's weights for all tiles at once
constexpr std::int64_t kTasksPerThread = 8;   // enough that all threads end at about the same time
constexpr std::int64_t kNormCost = 4;         // of an element, in the units of for_workers
constexpr std::int64_t kMaxPreparedBytes = 1 << 20;  // of prepared rows, so that they stay in the cache

WEFT_INLINE Epilogue epilogue_of(const LinearCall &call, const Panel &panel) {
  return {call.out + panel.first,
          call.out_row,
          panel.valid,
          call.bias ? call.bias + panel.first : nullptr,
          call.residual ? call.residual + panel.first : nullptr,
          call.residual_row};
}

// The epilogue that writes a panel of gates or ups to scratch memory [rows, kPanel]. Their biases begin at
// `first_bias`.
WEFT_INLINE Epilogue scratch_epilogue(const LinearCall &call, const Panel &panel, float *scratch,
                                      std::int64_t first_bias) {
  return {scratch, kPanel, panel.valid, call.bias ? call.bias + first_bias + panel.first : nullptr, nullptr, 0};
}

struct VectorKernels {
  PanelKernel by_format[kNumFormats];  // for float32 activations
  void (*multiply_panel)(const LinearCall &call, const Panel &panel, const Inputs &in, float *scratch);
  void (*norm_rows)(const NormCall &call, std::int64_t begin, std::int64_t end);
};

// The kernels for one kind of rounded activations.
struct RoundedKernels {
  PanelKernel panels;
  RowKernel rows;
};

// A block of inputs begin..end-1. All tiles of rows multiply this block before the next one, so only the first reads
// its weights from memory. Meanwhile each tile prefetches its share of the next block's weights: `lines` cache lines
// per input, from `share` on.
struct Depth {
  std::int64_t begin, end;
  const char *share;  // or null
  int lines;
};

#define WEFT_PAIRS 0
#define WEFT_INNER_LOOPS "kernels/layer/tiles.h"
#include "kernels/layer/each_target.h"

#if defined(WEFT_HAS_TARGETS) && __GNUC__ >= 11
#define WEFT_HAS_BFLOAT16 1
#undef WEFT_PAIRS
#define WEFT_PAIRS 1
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,f16c,avx512bf16,prefer-vector-width=512")
namespace pairs {
using avx512::kLanes;
using avx512::kMaxTileRows;
using avx512::Lanes;
using avx512::load;
using avx512::store_epilogue;
using avx512::vectors_of;
#include "kernels/layer/tiles_bfloat16.h"
}  // namespace pairs
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target( \
    "avx512f,avx512bw,avx512vl,avx512dq,fma,f16c,avx512bf16,amx-tile,amx-int8,amx-bf16,prefer-vector-width=512")
namespace amx {
using avx512::kLanes;
using avx512::Lanes;
using avx512::load;
using avx512::store_epilogue;
#include "kernels/layer/amx_tiles.h"
}  // namespace amx
#pragma GCC pop_options
#endif

const VectorKernels &best_kernels() {
#if defined(WEFT_HAS_TARGETS)
  if (instruction_set() == InstructionSet::kAvx512) return avx512::kVectorKernels;
  if (instruction_set() == InstructionSet::kAvx2) return avx2::kVectorKernels;
#endif
  return plain::kVectorKernels;
}

const VectorKernels &vector_kernels() {
  static const VectorKernels &best = best_kernels();
  return best;
}

bool has_tiles() {
#if defined(WEFT_HAS_BFLOAT16)
  return &vector_kernels() == &avx512::kVectorKernels && has_amx();
#else
  return false;
#endif
}

// The fastest kernels for activations in bfloat16.
const RoundedKernels &bfloat16_kernels() {
#if defined(WEFT_HAS_BFLOAT16)
  if (has_tiles()) return amx::kBFloat16;
  if (instruction_set() == InstructionSet::kAvx512 && has_fast_pairs()) return pairs::kBFloat16;
#endif
#if defined(WEFT_HAS_TARGETS)
  if (instruction_set() == InstructionSet::kAvx512) return avx512::kBFloat16;
  if (instruction_set() == InstructionSet::kAvx2) return avx2::kBFloat16;
#endif
  return plain::kBFloat16;
}

// The kernels for rounded activations, or null if there are none.
const RoundedKernels *rounded_kernels(Activations activations) {
  if (activations == Activations::kBFloat16) {
    static const RoundedKernels &best = bfloat16_kernels();
    return &best;
  }
#if defined(WEFT_HAS_BFLOAT16)
  if (activations == Activations::kTwoBFloat16 && has_tiles()) return &amx::kTwoBFloat16;
#endif
  return nullptr;
}

// Returns the kernel for weights of `format`. Its `times` is null if there is none.
PanelKernel panel_kernel(Format format, Activations activations) {
  if (activations == Activations::kInt8) return int8_kernels().by_format[static_cast<int>(format)];
  if (const RoundedKernels *rounded = rounded_kernels(activations); rounded && format == Format::kBFloat16)
    return rounded->panels;
  if (activations == Activations::kFloat32) return vector_kernels().by_format[static_cast<int>(format)];
  return {};
}

const RowKernel *row_kernel(Activations activations) {
  if (activations == Activations::kInt8) return &int8_kernels().rows;
  const RoundedKernels *rounded = rounded_kernels(activations);
  return rounded ? &rounded->rows : nullptr;
}

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

// Working memory of a thread, kept from call to call.
struct Scratch {
  std::vector<float> norms, panels;
  std::vector<char> prepared;

  // Returns the input of a call, with memory for normalised and for prepared rows if the call needs them. `prepare`
  // fills that memory.
  Inputs reserve(const LinearCall &call, const Kernels &kernels) {
    LinearCall normed = call;
    if (call.norm) {
      norms.resize(size(call.rows * call.inputs));
      normed.x = norms.data(), normed.x_row = call.inputs;
    }
    Inputs in = inputs_of(normed, kernels);
    prepared.resize(size(in.bytes + kLineBytes));
    place(in, kernels, aligned(prepared.data()));
    return in;
  }

  // Normalises and prepares units begin..end-1.
  void prepare(const LinearCall &call, const Kernels &kernels, const Inputs &in, std::int64_t begin, std::int64_t end) {
    if (call.norm) {
      const NormCall norm{call.x, call.norm, norms.data(), call.rows, call.inputs, call.x_row, call.inputs, call.eps};
      vector_kernels().norm_rows(norm, begin * in.unit, std::min(end * in.unit, call.rows));
    }
    weft::prepare(in, kernels, begin, end);
  }

  // Returns memory for multiply_panel with `rows` rows.
  float *panels_of(const LinearCall &call, std::int64_t rows, const Kernels &kernels) {
    panels.resize(size(panel_scratch(rows, call, kernels)));
    return aligned(panels.data());
  }
};

// The bytes of memory for rows in another order.
std::int64_t ordered_bytes(const Rows &rows) {
  const std::int64_t bytes = rows.count * rows.width * static_cast<std::int64_t>(sizeof(float));
  return ceil_div(bytes, kLineBytes) * kLineBytes;
}

// The bytes that a product reads of an input row, if it prepares rows.
std::int64_t bytes_of_row(const Kernels &kernels, std::int64_t inputs) {
  std::int64_t bytes = 0;
  for (int r = 0; r < kernels.num_readings; ++r) {
    const RowKernel *kernel = kernels.readings[r].kernel;
    bytes += kernel ? kernel->bytes(1, inputs) : inputs * static_cast<std::int64_t>(sizeof(float));
  }
  return bytes;
}

// Returns the number of rows per block of a call. Rows are divided into blocks for two reasons: the panels alone may be
// too few tasks for the threads, and the rows may not fit into the cache.
std::int64_t rows_per_block(const LinearCall &call, const Kernels &kernels, std::int64_t panels) {
  const std::int64_t wanted_blocks = ceil_div(kTasksPerThread * call.threads, panels);
  return row_block(call.rows, std::min(std::max(call.rows / wanted_blocks, kMinRowBlock), kMaxRowBlock), kernels);
}

void multiply(const LinearCall &call, const Kernels &kernels) {
  static thread_local Scratch callers_scratch;
  const std::int64_t num_panels = count_panels(call);
  const bool needs_prepare = call.norm || kernels.prepare_rows(),
             each_prepares = needs_prepare && call.rows <= kMaxRowsPreparedByEach;
  Inputs input = inputs_of(call, kernels);
  if (needs_prepare && !each_prepares) {
    Scratch &shared = callers_scratch;  // the lambda must not name a thread_local: it would be the worker's
    input = shared.reserve(call, kernels);
    for_rows(units_of(input), call.threads, prepare_cost(input),
             [&](std::int64_t begin, std::int64_t end) { shared.prepare(call, kernels, input, begin, end); });
  }
  const std::int64_t block = rows_per_block(call, kernels, num_panels);
  const std::int64_t block_rows = std::min(block, call.rows), num_blocks = ceil_div(call.rows, block);
  for_workers(num_panels * num_blocks, call.threads, panel_cost(block_rows, call, kernels), [&](Share &share) {
    static thread_local Scratch own_scratch;
    Inputs rows = input;
    if (each_prepares) {
      rows = own_scratch.reserve(call, kernels);
      own_scratch.prepare(call, kernels, rows, 0, units_of(rows));
    }
    float *scratch = own_scratch.panels_of(call, block_rows, kernels);
    for (std::int64_t begin, end; share.next(begin, end);) {
      for (std::int64_t task = begin; task < end; ++task) {
        // A block's float32 rows stay in the cache while all panels are multiplied by them, so the panel varies faster.
        // The prepared rows of all blocks fit the cache (linear_cpu limits their number), so then the block varies
        // faster, and each panel is read from memory once.
        const std::int64_t panel = kernels.prepare_rows() ? task / num_blocks : task % num_panels;
        const std::int64_t first = (kernels.prepare_rows() ? task % num_blocks : task / num_panels) * block;
        const std::int64_t count = std::min(block, call.rows - first);
        multiply_panel(rows_of(call, first, count), panel_at(call, kernels, panel), rows_of(rows, first, count),
                       scratch);
      }
    }
  });
}

}  // namespace

void rms_norm_cpu(const NormCall &call, int threads) {
  const std::int64_t rows = live_rows(call.rows, call.live);
  if (threads == 1) return vector_kernels().norm_rows(call, 0, rows);
  for_rows(rows, threads, kNormCost * call.width,
           [&](std::int64_t begin, std::int64_t end) { vector_kernels().norm_rows(call, begin, end); });
}

bool has_fast_bfloat16() { return rounded_kernels(Activations::kBFloat16)->panels.speed > 1; }

bool can_multiply(Format format, Activations activations) { return panel_kernel(format, activations).times != nullptr; }

Kernels kernels_of(const LinearCall &call) {
  Kernels kernels{};
  for (int p = 0; p < call.num_parts; ++p) {
    const Part &part = call.parts[p];
    kernels.parts[p] = panel_kernel(part.format, part.activations);
    if (!kernels.parts[p].times) throw std::invalid_argument("no kernel multiplies this format by these activations");
    const Reading reading{row_kernel(part.activations), part.order};
    int &r = kernels.reading_of[p];
    while (r < kernels.num_readings && !(kernels.readings[r] == reading)) ++r;
    if (r == kernels.num_readings) kernels.readings[kernels.num_readings++] = reading;
  }
  return kernels;
}

std::int64_t count_panels(const LinearCall &call) {
  if (call.gated) return ceil_div(call.outputs, kPanel);
  std::int64_t count = 0;
  for (int p = 0; p < call.num_parts; ++p) count += ceil_div(call.parts[p].outputs, kPanel);
  return count;
}

Panel panel_at(const LinearCall &call, const Kernels &kernels, std::int64_t number) {
  const auto weights_at = [&](int part, std::int64_t panel) {
    return static_cast<const char *>(call.parts[part].panels) +
           panel * panel_bytes(call.parts[part].format, call.parts[part].activations, call.inputs);
  };
  std::int64_t first = 0;
  int part = 0;
  if (!call.gated) {
    for (std::int64_t panels; number >= (panels = ceil_div(call.parts[part].outputs, kPanel)); ++part)
      number -= panels, first += call.parts[part].outputs;
  }
  const std::int64_t valid = std::min(kPanel, call.parts[part].outputs - number * kPanel);
  const int reading = kernels.reading_of[part];
  Panel panel{first + number * kPanel, valid, nullptr, nullptr, &kernels.parts[part], nullptr, reading, reading};
  if (!call.gated) {
    panel.weights = weights_at(part, number);
  } else if (call.num_parts == 1) {
    panel.weights = weights_at(0, 2 * number), panel.ups = weights_at(0, 2 * number + 1);
    panel.ups_kernel = panel.kernel;
  } else {
    panel.weights = weights_at(0, number), panel.ups = weights_at(1, number);
    panel.ups_kernel = &kernels.parts[1], panel.ups_reading = kernels.reading_of[1];
  }
  return panel;
}

void multiply_panel(const LinearCall &call, const Panel &panel, const Inputs &in, float *scratch) {
  vector_kernels().multiply_panel(call, panel, in, scratch);
}

std::int64_t panel_scratch(std::int64_t rows, const LinearCall &call, const Kernels &kernels) {
  std::int64_t sums = 0;
  for (int p = 0; p < call.num_parts; ++p) sums = std::max(sums, kernels.parts[p].scratch(rows, call.inputs));
  return 2 * rows * kPanel + sums + kLineBytes / static_cast<std::int64_t>(sizeof(float));
}

std::int64_t panel_cost(std::int64_t rows, const LinearCall &call, const Kernels &kernels) {
  std::int64_t cost = 0;
  for (int p = 0; p < call.num_parts; ++p) {
    const std::int64_t bytes = panel_bytes(call.parts[p].format, call.parts[p].activations, call.inputs);
    cost = std::max(cost, bytes + kPanel * call.inputs * rows / kernels.parts[p].speed);
  }
  return call.gated ? 2 * cost : cost;
}

Inputs inputs_of(const LinearCall &call, const Kernels &kernels) {
  Inputs in{call.x, call.x_row, {}, kernels.num_readings, 1, 0};
  for (int r = 0; r < in.count; ++r) {
    const auto [kernel, order] = kernels.readings[r];
    const std::int64_t max_group = kernel ? kernel->max_group : kRowsNormedAtOnce;
    std::int64_t group = std::min(call.rows, max_group);
    // Two groups of 4 rows take less time than groups of 6 and 2. Further blocks begin at a multiple of max_group.
    if (kernel && call.rows > 0 && call.rows <= kernel->row_block) group = even_block(call.rows, max_group, 1);
    const std::int64_t group_bytes = kernel ? kernel->bytes(group, call.inputs) : 0;
    Rows &rows = in.rows[r];
    rows = {call.x, call.rows, call.inputs, call.x_row, nullptr, nullptr, group, group_bytes};
    if (group > 0) in.unit = std::lcm(in.unit, group), in.bytes += groups_of(rows) * group_bytes;
    if (order) in.bytes += ordered_bytes(rows);
  }
  return in;
}

void place(Inputs &in, const Kernels &kernels, char *memory) {
  for (int r = 0; r < in.count; ++r) {
    Rows &rows = in.rows[r];
    if (kernels.readings[r].kernel) rows.prepared = memory, memory += groups_of(rows) * rows.group_bytes;
    if (!kernels.readings[r].order) continue;
    rows.ordered = reinterpret_cast<float *>(memory), memory += ordered_bytes(rows);
    rows.x = rows.ordered, rows.stride = rows.width;
  }
}

void prepare(const Inputs &in, const Kernels &kernels, std::int64_t begin, std::int64_t end) {
  for (int r = 0; r < in.count; ++r) {
    const auto [kernel, order] = kernels.readings[r];
    const Rows &rows = in.rows[r];
    const std::int64_t first = begin * in.unit, last = std::min(end * in.unit, rows.count);
    for (std::int64_t m = first; order && m < last; ++m) {
      const float *from = in.x + m * in.stride;
      float *to = rows.ordered + m * rows.width;
      for (std::int64_t i = 0; i < rows.width; ++i) to[i] = from[order[i]];
    }
    if (kernel) kernel->prepare(rows, first / rows.group, ceil_div(last, rows.group), rows.prepared);
  }
}

std::int64_t prepare_cost(const Inputs &in) { return kNormCost * in.unit * in.rows[0].width; }

std::int64_t row_block(std::int64_t rows, std::int64_t max_block, const Kernels &kernels) {
  std::int64_t unit = 1;
  for (int r = 0; r < kernels.num_readings; ++r) {
    const RowKernel *kernel = kernels.readings[r].kernel;
    unit = std::lcm(unit, kernel ? kernel->row_block : kTileRows);
  }
  return even_block(rows, max_block, unit);
}

void linear_cpu(const LinearCall &call) {
  if (call.live) {
    LinearCall cut = call;
    cut.rows = live_rows(call.rows, call.live), cut.live = nullptr;
    return linear_cpu(cut);
  }
  if (call.rows == 0) return;
  const Kernels kernels = kernels_of(call);
  std::int64_t rows = call.rows;
  if (kernels.prepare_rows()) {
    const std::int64_t cached = kMaxPreparedBytes / bytes_of_row(kernels, call.inputs);
    rows = row_block(call.rows, std::max<std::int64_t>(cached, 1), kernels);
  }
  for (std::int64_t first = 0; first < call.rows; first += rows)
    multiply(rows_of(call, first, std::min(rows, call.rows - first)), kernels);
  if (!call.also) return;
  for (std::int64_t m = 0; m < call.rows; ++m)
    std::copy_n(call.out + m * call.out_row, call.outputs, call.also + m * call.also_row);
}

}  // namespace weft
