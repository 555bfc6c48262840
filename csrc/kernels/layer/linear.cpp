#include "kernels/layer/linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/floats.h"
#include "kernels/layer/live.h"
#include "kernels/layer/panels.h"
#include "kernels/vector_exp.h"
#include "support/instruction_set.h"
#include "support/kernel_threads.h"

namespace weft {
namespace {

constexpr std::int64_t kFloatsPerLine = 16;  // of the cache
// Up to this many rows, each worker prepares (normalises and splits) all inputs for itself. That is cheaper than
// sharing the work and waiting for it.
constexpr std::int64_t kMaxRowsPreparedByEach = 16;
constexpr std::int64_t kMinRowBlock = 36;     // fewer rows would read the weights too often
constexpr std::int64_t kDepthBlock = 1024;    // inputs whose weights stay in the cache while several tiles read them
constexpr std::int64_t kMinTilesToWiden = 5;  // from which it pays to widen a panel's weights for all tiles at once
constexpr std::int64_t kTasksPerThread = 8;   // enough that all threads end at about the same time
constexpr std::int64_t kNormCost = 4;         // of an element, in the units of for_workers
constexpr std::int64_t kMaxCachedSplit = 1 << 19;  // 16-bit elements of split rows that stay in the cache

// The epilogue of a panel: adds bias and residual to the kPanel sums of a row and stores the first `valid` of them.
struct Epilogue {
  float *out;
  std::int64_t stride, valid;
  const float *bias, *residual;  // or null
  std::int64_t residual_row;
};

WEFT_INLINE Epilogue epilogue_of(const LinearCall &call, std::int64_t panel) {
  const std::int64_t first = panel * kPanel;
  return {call.out + first,
          call.out_row,
          std::min(kPanel, call.outputs - first),
          call.bias ? call.bias + first : nullptr,
          call.residual ? call.residual + first : nullptr,
          call.residual_row};
}

// The epilogue that writes a panel of gates or ups to scratch memory [rows, kPanel]. Their biases begin at
// `first_bias`.
WEFT_INLINE Epilogue scratch_epilogue(const LinearCall &call, std::int64_t panel, float *scratch,
                                      std::int64_t first_bias) {
  const std::int64_t first = panel * kPanel;
  return {scratch, kPanel, std::min(kPanel, call.outputs - first), call.bias ? call.bias + first_bias + first : nullptr,
          nullptr, 0};
}

struct VectorKernels {
  PanelFunction multiply_by_dtype[3];
  void (*norm_rows)(const NormCall &call, std::int64_t begin, std::int64_t end);
};

namespace plain {
#define WEFT_TARGET 0
#include "kernels/layer/tiles.h"
#undef WEFT_TARGET
}  // namespace plain

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WEFT_HAS_TARGETS 1
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace avx2 {
#define WEFT_TARGET 256
#include "kernels/layer/tiles.h"
#undef WEFT_TARGET
}  // namespace avx2
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,f16c,prefer-vector-width=512")
namespace avx512 {
#define WEFT_TARGET 512
#include "kernels/layer/tiles.h"
#undef WEFT_TARGET
}  // namespace avx512
#pragma GCC pop_options
#if __GNUC__ >= 11
#define WEFT_HAS_AMX 1
#pragma GCC push_options
#pragma GCC target( \
    "avx512f,avx512bw,avx512vl,avx512dq,fma,f16c,avx512bf16,amx-tile,amx-int8,amx-bf16,prefer-vector-width=512")
namespace amx {
using avx512::kLanes;
using avx512::Lanes;
using avx512::load;
using avx512::multiply_panels;
using avx512::store_epilogue;
#include "kernels/layer/amx_tiles.h"
}  // namespace amx
#pragma GCC pop_options
#endif
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

const AmxKernels *amx_kernels() {
#if defined(WEFT_HAS_AMX)
  if (&vector_kernels() == &avx512::kVectorKernels && has_amx()) return &amx::kAmxKernels;
#endif
  return nullptr;
}

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

Rows input_of(const LinearCall &call) {
  return {call.x, call.rows, call.inputs, call.x_row, nullptr, group_of(call.rows)};
}

// Working memory of a thread, kept from call to call.
struct Scratch {
  std::vector<float> norms, panels;
  std::vector<std::uint16_t> split;

  // Returns the input of a call, with memory for normalised and for split rows if the call needs them. `prepare` fills
  // that memory.
  Rows reserve(const LinearCall &call, const Kernels &kernels) {
    Rows rows = input_of(call);
    if (call.norm) {
      norms.resize(size(call.rows * call.inputs));
      rows.x = norms.data(), rows.stride = call.inputs;
    }
    if (kernels.amx) {
      split.resize(size(groups_of(rows) * split_size(rows.group, call.inputs)));
      rows.split = split.data();
    }
    return rows;
  }

  // Normalises and splits groups begin..end-1.
  void prepare(const LinearCall &call, const Kernels &kernels, const Rows &rows, std::int64_t begin, std::int64_t end) {
    if (call.norm) {
      const NormCall norm{call.x, call.norm, norms.data(), call.rows, call.inputs, call.x_row, call.inputs, call.eps};
      vector_kernels().norm_rows(norm, begin * rows.group, std::min(end * rows.group, call.rows));
    }
    if (kernels.amx) kernels.amx->split_rows(rows, begin, end, split.data());
  }

  // Returns memory for multiply_panels of `rows` rows.
  float *panels_of(const LinearCall &call, std::int64_t rows, const Kernels &kernels) {
    panels.resize(size(panel_scratch(rows, call.inputs, kernels)));
    return aligned(panels.data());
  }
};

// Returns the number of rows per block of a call. Rows are divided into blocks for two reasons: the panels alone may be
// too few tasks for the threads, and the rows may not fit into the cache.
std::int64_t rows_per_block(const LinearCall &call, const Kernels &kernels, std::int64_t panels) {
  const std::int64_t wanted_blocks = ceil_div(kTasksPerThread * call.threads, panels);
  const std::int64_t unit = kernels.amx ? kAmxRowBlock : kTileRows;
  return even_block(call.rows, std::min(std::max(call.rows / wanted_blocks, kMinRowBlock), kMaxRowBlock), unit);
}

void multiply(const LinearCall &call, const Kernels &kernels) {
  static thread_local Scratch callers_scratch;
  const std::int64_t num_panels = ceil_div(call.outputs, kPanel);
  const bool needs_prepare = call.norm || kernels.amx,
             each_prepares = needs_prepare && call.rows <= kMaxRowsPreparedByEach;
  Rows input = input_of(call);
  if (needs_prepare && !each_prepares) {
    Scratch &shared = callers_scratch;  // the lambda must not name a thread_local: it would be the worker's
    input = shared.reserve(call, kernels);
    for_rows(groups_of(input), call.threads, kNormCost * input.group * call.inputs,
             [&](std::int64_t begin, std::int64_t end) { shared.prepare(call, kernels, input, begin, end); });
  }
  const std::int64_t block = rows_per_block(call, kernels, num_panels);
  const std::int64_t block_rows = std::min(block, call.rows), num_blocks = ceil_div(call.rows, block);
  const std::int64_t bytes = call.dtype == DType::kFloat32 ? 4 : 2;
  const std::int64_t products = kernels.amx ? block_rows / 2 : block_rows;  // AMX does two products in the time of one
  const std::int64_t cost = (call.gated ? 2 : 1) * kPanel * call.inputs * (bytes + products);
  for_workers(num_panels * num_blocks, call.threads, cost, [&](Share &share) {
    static thread_local Scratch own_scratch;
    Rows rows = input;
    if (each_prepares) {
      rows = own_scratch.reserve(call, kernels);
      own_scratch.prepare(call, kernels, rows, 0, groups_of(rows));
    }
    float *scratch = own_scratch.panels_of(call, block_rows, kernels);
    for (std::int64_t begin, end; share.next(begin, end);) {
      for (std::int64_t task = begin; task < end; ++task) {
        // Without AMX, a block's rows stay in the cache while all panels are multiplied by them, so the panel varies
        // faster. With AMX, the split rows of all blocks fit the cache (linear_cpu limits their number), so the block
        // varies faster and each panel is read from memory once.
        const std::int64_t panel = kernels.amx ? task / num_blocks : task % num_panels;
        const std::int64_t first = (kernels.amx ? task % num_blocks : task / num_panels) * block;
        const std::int64_t count = std::min(block, call.rows - first);
        kernels.multiply_panels(rows_of(call, first, count), rows_of(rows, first, count), scratch, panel, panel + 1);
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

Kernels kernels_for(DType dtype, bool tiled) {
  const AmxKernels *amx = tiled ? amx_kernels() : nullptr;
  return {amx ? amx->multiply_panels : vector_kernels().multiply_by_dtype[static_cast<int>(dtype)], amx};
}

std::int64_t panel_scratch(std::int64_t rows, std::int64_t inputs, const Kernels &kernels) {
  const std::int64_t wide = std::min(inputs, kDepthBlock) * kPanel;
  const std::int64_t sums = kernels.amx ? ceil_div(rows, kGroup) * kGroupSums : rows * kPanel + wide;
  return 2 * rows * kPanel + sums + kFloatsPerLine;
}

float *aligned(float *begin) {
  constexpr std::uintptr_t kLine = kFloatsPerLine * sizeof(float);
  return reinterpret_cast<float *>((reinterpret_cast<std::uintptr_t>(begin) + kLine - 1) / kLine * kLine);
}

bool has_tiles() { return amx_kernels() != nullptr; }

void linear_cpu(const LinearCall &call) {
  if (call.live) {
    LinearCall cut = call;
    cut.rows = live_rows(call.rows, call.live), cut.live = nullptr;
    return linear_cpu(cut);
  }
  if (call.rows == 0) return;
  const Kernels kernels = kernels_for(call.dtype, call.tiled);
  const std::int64_t cached = kMaxCachedSplit / (blocks_of(call.inputs) * kParts * kBlock);
  const std::int64_t rows =
      kernels.amx ? even_block(call.rows, std::max(cached, kAmxRowBlock), kAmxRowBlock) : call.rows;
  for (std::int64_t first = 0; first < call.rows; first += rows)
    multiply(rows_of(call, first, std::min(rows, call.rows - first)), kernels);
  if (!call.also) return;
  for (std::int64_t m = 0; m < call.rows; ++m)
    std::copy_n(call.out + m * call.out_row, call.outputs, call.also + m * call.also_row);
}

}  // namespace weft
