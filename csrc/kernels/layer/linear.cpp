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
#include "support/kernel_threads.h"
#include "support/multiversion.h"

namespace weft {
namespace {

constexpr int kLanes = 16;
constexpr std::int64_t kNormsAgain = 16;  // up to so many rows every thread makes the norms: cheaper than a wait

typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

WEFT_INLINE Lanes load(const float *from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

struct Rows {
  const float *x;
  std::int64_t count, width, stride;
};

// Where the 64 sums of a panel's row go, of which `valid` count.
struct Sink {
  float *out;
  std::int64_t stride, valid;
  const float *bias, *residual;  // or null
  std::int64_t residual_row;
};

WEFT_INLINE void put(const Sink &sink, std::int64_t row, std::int64_t place, Lanes sums) {
  float *out = sink.out + row * sink.stride + place;
  const float *residual = sink.residual ? sink.residual + row * sink.residual_row + place : nullptr;
  const std::int64_t valid = sink.valid - place;
  if (valid >= kLanes) {
    if (sink.bias) sums += load(sink.bias + place);
    if (residual) sums += load(residual);
    std::memcpy(out, &sums, sizeof sums);
    return;
  }
  for (std::int64_t n = 0; n < valid; ++n) {
    const float value = sink.bias ? sums[n] + sink.bias[place + n] : sums[n];
    out[n] = residual ? value + residual[n] : value;
  }
}

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
#endif

const Units &best_units() {
#if defined(WEFT_HAS_TARGETS)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma"))
    return avx512::kUnits;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2::kUnits;
#endif
  return plain::kUnits;
}

const Units &chosen() {
  static const Units &units = best_units();
  return units;
}

struct Room {
  std::vector<float> norms, panels;
};

NormCall norm_of(const LinearCall &call, float *out) {
  return {call.x, call.norm, out, call.rows, call.inputs, call.x_row, call.inputs, call.eps};
}

}  // namespace

void rms_norm_cpu(const NormCall &call) { chosen().norm_rows(call, 0, call.rows); }

void linear_cpu(const LinearCall &call) {
  static thread_local Room mine;
  const UnitsOf units = chosen().by_dtype[static_cast<int>(call.dtype)];
  const std::int64_t count = (call.outputs + kPanel - 1) / kPanel;
  const std::int64_t panels = call.swiglu ? 2 : 1;
  const bool norms_again = call.norm && call.rows <= kNormsAgain;
  Rows in{call.x, call.rows, call.inputs, call.x_row};
  const auto size = [](std::int64_t floats) { return static_cast<std::size_t>(floats); };
  if (call.norm) {
    mine.norms.resize(size(call.rows * call.inputs));
    in.x = mine.norms.data(), in.stride = call.inputs;
    if (!norms_again) {
      const NormCall norm = norm_of(call, mine.norms.data());
      for_rows(call.rows, call.threads, 4 * call.inputs,
               [&](std::int64_t begin, std::int64_t end) { chosen().norm_rows(norm, begin, end); });
    }
  }
  const std::int64_t bytes = call.dtype == DType::kFloat32 ? 4 : 2;
  const std::int64_t cost = panels * kPanel * call.inputs * (bytes + call.rows);
  for_workers(count, call.threads, cost, [&](Claims &claims) {
    static thread_local Room own;
    Rows rows = in;
    if (norms_again) {
      own.norms.resize(size(call.rows * call.inputs));
      rows.x = own.norms.data();
      chosen().norm_rows(norm_of(call, own.norms.data()), 0, call.rows);
    }
    own.panels.resize(size(3 * call.rows * kPanel));
    for (std::int64_t begin, end; claims.next(begin, end);) units(call, rows, own.panels.data(), begin, end);
  });
}

}  // namespace weft
