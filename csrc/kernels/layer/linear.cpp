#include "kernels/layer/linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/floats.h"
#include "kernels/vector_exp.h"
#include "support/amx.h"
#include "support/instruction_set.h"
#include "support/kernel_threads.h"
#include "support/multiversion.h"

namespace weft {
namespace {

constexpr std::int64_t kFloatsOfLine = 16;  // of a cache
constexpr std::int64_t kMadeAgain = 16;  // up to so many rows every thread makes norms and parts: cheaper than a wait
constexpr std::int64_t kLeastRows = 48;  // of a part of a call, and what its rows are a multiple of: whole tiles
constexpr std::int64_t kMostRowsNear = 96;
constexpr std::int64_t kNearInputs = 1024;  // of a panel, whose weights stay near while several tiles read them
constexpr std::int64_t kFairUnits = 8;      // that a thread should have, so that all end at about one time

// With tiles of AMX rows are in groups of one size, whose floats are split into parts.
struct Rows {
  const float *x;
  std::int64_t count, width, stride;
  const std::uint16_t *split;
  std::int64_t group;
};

constexpr std::int64_t kGroup = 8, kParts = 2, kGroupSums = kGroup * kParts * kPanel;
constexpr std::int64_t kBlock = 32, kTile = 512;             // inputs of a tile; its numbers of 16 bits
constexpr std::int64_t kTilesOfBlock = kPanel / 16 * kTile;  // those of a block of a panel's weights
constexpr std::int64_t kSplitNear = 1 << 19;                 // numbers of 16 bits that stay near: rows split at once

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t group_of(std::int64_t rows) { return std::min(rows, kGroup); }
std::int64_t groups_of(const Rows &rows) { return ceil_div(rows.count, rows.group); }
std::int64_t blocks_of(std::int64_t inputs) { return ceil_div(inputs, kBlock); }

// 16-bit numbers of a group, split: [blocks, kParts, group, kBlock].
std::int64_t split_size(std::int64_t group, std::int64_t inputs) { return blocks_of(inputs) * kParts * group * kBlock; }

// Where the 64 sums of a panel's row go, of which `valid` count.
struct Sink {
  float *out;
  std::int64_t stride, valid;
  const float *bias, *residual;  // or null
  std::int64_t residual_row;
};

WEFT_INLINE Sink sink_of(const LinearCall &call, std::int64_t unit) {
  const std::int64_t first = unit * kPanel;
  return {call.out + first,
          call.out_row,
          std::min(kPanel, call.outputs - first),
          call.bias ? call.bias + first : nullptr,
          call.residual ? call.residual + first : nullptr,
          call.residual_row};
}

// A panel of gates or ups, [rows, kPanel]; `before` is where their biases begin.
WEFT_INLINE Sink room_of(const LinearCall &call, std::int64_t unit, float *room, std::int64_t before) {
  const std::int64_t first = unit * kPanel;
  return {room,    kPanel, std::min(kPanel, call.outputs - first), call.bias ? call.bias + before + first : nullptr,
          nullptr, 0};
}

using UnitsOf = void (*)(const LinearCall &call, const Rows &in, float *room, std::int64_t begin, std::int64_t end);
struct Units {
  UnitsOf by_dtype[3];
  void (*norm_rows)(const NormCall &call, std::int64_t begin, std::int64_t end);
};
struct TileUnits {
  UnitsOf units;
  void (*split_rows)(const Rows &rows, std::int64_t begin, std::int64_t end, std::uint16_t *split);
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
using avx512::put;
using avx512::units;
#include "kernels/layer/amx_tiles.h"
}  // namespace amx
#pragma GCC pop_options
#endif
#endif

const Units &best_units() {
#if defined(WEFT_HAS_TARGETS)
  if (instruction_set() == InstructionSet::kAvx512) return avx512::kUnits;
  if (instruction_set() == InstructionSet::kAvx2) return avx2::kUnits;
#endif
  return plain::kUnits;
}

const Units &chosen() {
  static const Units &units = best_units();
  return units;
}

const TileUnits *tile_units() {
#if defined(WEFT_HAS_AMX)
  if (&chosen() == &avx512::kUnits && has_amx()) return &amx::kTileUnits;
#endif
  return nullptr;
}

// How a call is done, and who does what of it.
struct Way {
  UnitsOf units;
  const TileUnits *tiles;  // or null
};

Way way_of(const LinearCall &call) {
  const TileUnits *tiles = call.tiled ? tile_units() : nullptr;
  return {tiles ? tiles->units : chosen().by_dtype[static_cast<int>(call.dtype)], tiles};
}

// To a cache line: lanes that lie in two take twice as long.
float *aligned(float *begin) {
  constexpr std::uintptr_t kLine = kFloatsOfLine * sizeof(float);
  return reinterpret_cast<float *>((reinterpret_cast<std::uintptr_t>(begin) + kLine - 1) / kLine * kLine);
}

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

Rows as_given(const LinearCall &call) {
  return {call.x, call.rows, call.inputs, call.x_row, nullptr, group_of(call.rows)};
}

// A worker's memory, or that of all.
struct Room {
  std::vector<float> norms, panels;
  std::vector<std::uint16_t> split;

  // Where the rows of a call will be under its norm, and split.
  Rows rows_of(const LinearCall &call, const Way &way) {
    Rows rows = as_given(call);
    if (call.norm) {
      norms.resize(size(call.rows * call.inputs));
      rows.x = norms.data(), rows.stride = call.inputs;
    }
    if (way.tiles) {
      split.resize(size(groups_of(rows) * split_size(rows.group, call.inputs)));
      rows.split = split.data();
    }
    return rows;
  }

  // Makes groups begin..end-1 of them.
  void make(const LinearCall &call, const Way &way, const Rows &rows, std::int64_t begin, std::int64_t end) {
    if (call.norm) {
      const NormCall norm{call.x, call.norm, norms.data(), call.rows, call.inputs, call.x_row, call.inputs, call.eps};
      chosen().norm_rows(norm, begin * rows.group, std::min(end * rows.group, call.rows));
    }
    if (way.tiles) way.tiles->split_rows(rows, begin, end, split.data());
  }

  float *panels_of(std::int64_t rows, const Way &way) {
    const std::int64_t sums = way.tiles ? ceil_div(rows, kGroup) * kGroupSums : rows * kPanel;
    panels.resize(size(2 * rows * kPanel + sums + kFloatsOfLine));
    return aligned(panels.data());
  }
};

LinearCall rows_of(const LinearCall &call, std::int64_t first, std::int64_t count) {
  LinearCall part = call;
  part.rows = count;
  part.x += first * call.x_row, part.out += first * call.out_row;
  if (call.residual) part.residual += first * call.residual_row;
  return part;
}

Rows rows_of(const Rows &rows, std::int64_t first, std::int64_t count) {
  Rows part = rows;
  part.count = count;
  part.x += first * rows.stride;
  if (rows.split) part.split += first / rows.group * split_size(rows.group, rows.width);
  return part;
}

// Rows in parts of about one size, of at most `most`, a multiple of kLeastRows.
std::int64_t even_part(std::int64_t rows, std::int64_t most) {
  return ceil_div(ceil_div(rows, ceil_div(rows, most)), kLeastRows) * kLeastRows;
}

// Into how many rows each a call is parted: panels alone may be too few to share, and rows too many to stay near.
std::int64_t rows_of_part(const LinearCall &call, std::int64_t panels) {
  const std::int64_t wanted = ceil_div(kFairUnits * call.threads, panels);
  return even_part(call.rows, std::min(std::max(call.rows / wanted, kLeastRows), kMostRowsNear));
}

void multiply(const LinearCall &call, const Way &way) {
  static thread_local Room mine;
  const std::int64_t count = ceil_div(call.outputs, kPanel);
  const bool makes = call.norm || way.tiles, makes_again = makes && call.rows <= kMadeAgain;
  Rows shared = as_given(call);
  if (makes && !makes_again) {
    Room &all = mine;  // the caller's, on whichever thread it is made
    shared = all.rows_of(call, way);
    for_rows(groups_of(shared), call.threads, 4 * shared.group * call.inputs,
             [&](std::int64_t begin, std::int64_t end) { all.make(call, way, shared, begin, end); });
  }
  const std::int64_t bytes = call.dtype == DType::kFloat32 ? 4 : 2, part = rows_of_part(call, count);
  const std::int64_t most = std::min(part, call.rows), parts = ceil_div(call.rows, part);
  const std::int64_t cost = (call.swiglu ? 2 : 1) * kPanel * call.inputs * (bytes + (way.tiles ? most / 2 : most));
  for_workers(count * parts, call.threads, cost, [&](Share &share) {
    static thread_local Room own;
    Rows rows = shared;
    if (makes_again) {
      rows = own.rows_of(call, way);
      own.make(call, way, rows, 0, groups_of(rows));
    }
    float *room = own.panels_of(most, way);
    for (std::int64_t begin, end; share.next(begin, end);) {
      for (std::int64_t unit = begin; unit < end; ++unit) {
        // Rows of a part stay near while its panels are read; parts that are split are all near.
        const std::int64_t panel = way.tiles ? unit / parts : unit % count;
        const std::int64_t first = (way.tiles ? unit % parts : unit / count) * part;
        const std::int64_t taken = std::min(part, call.rows - first);
        way.units(rows_of(call, first, taken), rows_of(rows, first, taken), room, panel, panel + 1);
      }
    }
  });
}

}  // namespace

void rms_norm_cpu(const NormCall &call) { chosen().norm_rows(call, 0, call.rows); }

bool has_tiles() { return tile_units() != nullptr; }

void linear_cpu(const LinearCall &call) {
  const Way way = way_of(call);
  const std::int64_t near = kSplitNear / (blocks_of(call.inputs) * kParts * kBlock);
  const std::int64_t most = way.tiles ? even_part(call.rows, std::max(near, kLeastRows)) : call.rows;
  for (std::int64_t first = 0; first < call.rows; first += most)
    multiply(rows_of(call, first, std::min(most, call.rows - first)), way);
  if (!call.also) return;
  for (std::int64_t m = 0; m < call.rows; ++m)
    std::copy_n(call.out + m * call.out_row, call.outputs, call.also + m * call.also_row);
}

}  // namespace weft
