// Products of rows with panels of weights on one thread: what linear.cpp and experts.cpp share. Internal to this
// folder.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/layer/linear.h"

namespace weft {

// The input rows of a product. Kernels for rounded activations read them from `prepared`, in groups of `group` rows.
struct Rows {
  const float *x;
  std::int64_t count, width, stride;
  float *ordered;  // memory for rows in another order, which `x` then is; or null
  char *prepared;  // or null
  std::int64_t group;
  std::int64_t group_bytes;  // of `prepared`
};

// The input rows of a call, as each of its parts reads them.
struct Inputs {
  const float *x;  // the rows before they are prepared
  std::int64_t stride;
  Rows rows[kMaxParts];
  int count;           // of `rows`
  std::int64_t unit;   // rows that are prepared together: whole groups of all `rows`
  std::int64_t bytes;  // of memory for what is prepared; 0 if all rows are read as they are
};

constexpr std::int64_t kTileRows = 6;      // rows of a block are a multiple, so that all tiles are full
constexpr std::int64_t kMaxRowBlock = 96;  // a block's inputs stay in the cache while its panels are read

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
inline std::int64_t groups_of(const Rows &rows) { return ceil_div(rows.count, rows.group); }

// Returns rows first .. first + count - 1. `first` is a multiple of the group's size.
inline LinearCall rows_of(const LinearCall &call, std::int64_t first, std::int64_t count) {
  LinearCall block = call;
  block.rows = count;
  block.x += first * call.x_row, block.out += first * call.out_row;
  if (call.residual) block.residual += first * call.residual_row;
  return block;
}

inline Rows rows_of(const Rows &rows, std::int64_t first, std::int64_t count) {
  Rows block = rows;
  block.count = count;
  block.x += first * rows.stride;
  if (rows.prepared) block.prepared += first / rows.group * rows.group_bytes;
  return block;
}

inline Inputs rows_of(const Inputs &in, std::int64_t first, std::int64_t count) {
  Inputs block{};
  block.count = in.count;
  for (int r = 0; r < in.count; ++r) block.rows[r] = rows_of(in.rows[r], first, count);
  return block;
}

inline std::int64_t units_of(const Inputs &in) { return ceil_div(in.rows[0].count, in.unit); }

// Returns a block size, a multiple of `unit`, that divides the rows into blocks of about the same size. It is at most
// `max_block`, rounded up to such a multiple.
inline std::int64_t even_block(std::int64_t rows, std::int64_t max_block, std::int64_t unit) {
  return ceil_div(ceil_div(rows, ceil_div(rows, max_block)), unit) * unit;
}

// The epilogue of a panel: adds bias and residual to the kPanel sums of a row and stores the first `valid` of them.
struct Epilogue {
  float *out;
  std::int64_t stride, valid;
  const float *bias, *residual;  // or null
  std::int64_t residual_row;
};

// Rounds input rows for one kind of activations.
struct RowKernel {
  std::int64_t max_group;                                          // rows of a group
  std::int64_t row_block;                                          // rows of a block are a multiple of this
  std::int64_t (*bytes)(std::int64_t group, std::int64_t inputs);  // of a prepared group
  // Prepares groups begin..end-1 of `rows`; group 0 goes to `to`.
  void (*prepare)(const Rows &rows, std::int64_t begin, std::int64_t end, char *to);
};

// Multiplies rows by panels of one format.
struct PanelKernel {
  // `scratch` has memory for scratch() floats, and begins at a cache line.
  void (*times)(const Rows &in, const void *panel, float *scratch, const Epilogue &out);
  std::int64_t (*scratch)(std::int64_t rows, std::int64_t inputs);
  std::int64_t speed;  // products in the time of one in float32
};

// How parts of a call read its input rows.
struct Reading {
  const RowKernel *kernel;    // null: in float32
  const std::int32_t *order;  // of the inputs, or null

  bool is_prepared() const { return kernel || order; }
  bool operator==(const Reading &other) const { return kernel == other.kernel && order == other.order; }
};

// The kernels of a call: those of its parts, and the ways in which these read the rows.
struct Kernels {
  PanelKernel parts[kMaxParts];
  int reading_of[kMaxParts];  // the place in `readings` of each part's
  Reading readings[kMaxParts];
  int num_readings;

  bool prepare_rows() const { return num_readings > 1 || readings[0].is_prepared(); }
};

Kernels kernels_of(const LinearCall &call);

// A panel of a call: `valid` outputs from `first` on.
struct Panel {
  std::int64_t first, valid;
  const char *weights, *ups;  // `ups` only with gates
  const PanelKernel *kernel, *ups_kernel;
  int reading, ups_reading;
};

// The number of a call's panels, and the panel of a number.
std::int64_t count_panels(const LinearCall &call);
Panel panel_at(const LinearCall &call, const Kernels &kernels, std::int64_t number);

// Multiplies rows by a panel. `scratch` has panel_scratch() floats.
void multiply_panel(const LinearCall &call, const Panel &panel, const Inputs &in, float *scratch);

// The number of floats for gates, ups and partial sums of `rows` rows.
std::int64_t panel_scratch(std::int64_t rows, const LinearCall &call, const Kernels &kernels);

// The work of a panel with `rows` rows, in the units of for_workers.
std::int64_t panel_cost(std::int64_t rows, const LinearCall &call, const Kernels &kernels);

// The rows of a call, without memory for what is prepared.
Inputs inputs_of(const LinearCall &call, const Kernels &kernels);

// Gives the rows their memory, in.bytes from a cache line on.
void place(Inputs &in, const Kernels &kernels, char *memory);

// Prepares units begin..end-1 of the rows.
void prepare(const Inputs &in, const Kernels &kernels, std::int64_t begin, std::int64_t end);

// The work of preparing a unit, in the units of for_workers.
std::int64_t prepare_cost(const Inputs &in);

// Returns the number of rows of a block, for the kernels of a call.
std::int64_t row_block(std::int64_t rows, std::int64_t max_block, const Kernels &kernels);

constexpr std::int64_t kLineBytes = 64;  // of the cache

// Rounds an address up to a cache line, because loading a vector that straddles two lines takes twice as long. Memory
// for it has kLineBytes more than is needed.
template <class T>
T *aligned(T *begin) {
  constexpr std::uintptr_t kLine = kLineBytes;
  return reinterpret_cast<T *>((reinterpret_cast<std::uintptr_t>(begin) + kLine - 1) / kLine * kLine);
}

}  // namespace weft
