#include "kernels/sampling/slots.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/sampling/advance_rule.h"
#include "kernels/sampling/penalty_rule.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/suppress_ends.h"
#include "kernels/sampling/truncation.h"

namespace weft {
namespace {

// Some row of the call for which `asks(slot)`.
template <class F>
bool any_slot(const SlotCall &call, F &&asks) {
  const std::int64_t rows = call.logits.rows / call.positions;
  for (std::int64_t b = 0; b < rows; ++b) {
    if (asks(call.slot_of(b * call.positions))) return true;
  }
  return false;
}

// What the calls that take rows one by one are told of each.
struct Rows {
  std::vector<std::int64_t> slot, length, position, seed, seen, extra;
  std::vector<float> temperature, top_p, min_p, floor;
  std::vector<std::int32_t> top_k;
};

template <class T, class F>
void fill(std::vector<T> &values, std::int64_t rows, F &&of) {
  values.resize(static_cast<std::size_t>(rows));
  for (std::int64_t i = 0; i < rows; ++i) values[static_cast<std::size_t>(i)] = static_cast<T>(of(i));
}

void penalize(const SlotCall &call, Rows &r, int threads) {
  const std::int64_t rows = call.logits.rows, width = call.num_extra;
  fill(r.length, rows, [&](std::int64_t i) { return call.length_of(i); });
  fill(r.seen, rows, [&](std::int64_t i) { return call.seen_by(i); });
  fill(r.extra, rows * width, [&](std::int64_t n) { return call.extra_of(n / width, n % width); });
  penalize_cpu({call.logits, call.tables.penalties, r.slot.data(), r.length.data(), r.extra.data(), r.seen.data(),
                width, call.d2t, r.temperature.data()},
               threads);
}

const float *truncate(const SlotCall &call, Rows &r, int threads) {
  const std::int64_t rows = call.logits.rows;
  fill(r.top_k, rows, [&](std::int64_t i) { return call.tables.top_k[call.slot_of(i)]; });
  fill(r.min_p, rows, [&](std::int64_t i) { return call.tables.min_p[call.slot_of(i)]; });
  r.floor.resize(static_cast<std::size_t>(rows));
  truncation_floor_cpu(
      {call.logits, r.temperature.data(), r.top_k.data(), r.top_p.data(), r.min_p.data(), r.floor.data()}, threads);
  return r.floor.data();
}

}  // namespace

void sample_slots_cpu(const SlotCall &call, int threads) {
  static thread_local Rows r;
  const SlotTables &tables = call.tables;
  const std::int64_t rows = call.logits.rows;
  fill(r.slot, rows, [&](std::int64_t i) { return call.slot[i / call.positions]; });
  fill(r.position, rows, [&](std::int64_t i) { return call.length_of(i) + call.seen_by(i); });
  fill(r.seed, rows, [&](std::int64_t i) { return tables.seed[call.slot_of(i)]; });
  fill(r.temperature, rows, [&](std::int64_t i) { return call.temperature_of(i); });
  if (any_slot(call, [&](std::int64_t s) { return tables.penalties.active[s] != 0; })) penalize(call, r, threads);
  bool is_early = false;
  for (std::int64_t i = 0; i < rows; ++i)
    is_early |= r.position[static_cast<std::size_t>(i)] < tables.until[call.slot_of(i)];
  if (call.keeps_min_tokens && is_early) {
    suppress_ends_cpu({call.logits, tables.ends, tables.until, tables.penalties.slots, tables.ends_width, r.slot.data(),
                       r.position.data()},
                      threads);
  }
  if (any_slot(call, [&](std::int64_t s) { return is_wide(tables.penalties, s); })) {
    level_cpu({call.logits, tables.penalties, r.slot.data()}, threads);
  }
  fill(r.top_p, rows, [&](std::int64_t i) { return call.top_p_of(i); });
  bool truncates = any_slot(call, [&](std::int64_t s) { return tables.top_k[s] > 0 || tables.min_p[s] > 0; });
  for (const float top_p : r.top_p) truncates |= top_p < 1;
  const float *floor = truncates ? truncate(call, r, threads) : nullptr;
  sample_cpu({call.logits, r.temperature.data(), r.seed.data(), r.position.data(), call.d2t, floor, call.out}, threads);
  if (!call.draft_number) return;
  for (std::int64_t b = 0; b < rows; ++b) call.write_draft(b);
}

void advance_slots_cpu(const AdvanceCall &call) {
  for (std::int64_t b = 0; b < call.rows; ++b) advance_row(call, b);
}

void keep_logits_cpu(const KeepCall &call) {
  const std::int64_t size = call.from.dtype == DType::kFloat32 ? 4 : 2;
  for (std::int64_t i = 0; i < call.from.rows; ++i) {
    const std::int64_t s = call.slot[i / call.positions];
    if (s < 0 || s >= call.slots || !call.wanted[s]) continue;
    std::memcpy(static_cast<char *>(call.to) + i * call.from.vocab * size,
                static_cast<const char *>(call.from.data) + i * call.from.stride * size,
                static_cast<std::size_t>(call.from.vocab * size));
  }
}

#if !defined(WEFT_WITH_CUDA)
const char *sample_slots_cuda(const SlotCall &, int, void *) { return "built without CUDA"; }
const char *advance_slots_cuda(const AdvanceCall &, void *) { return "built without CUDA"; }
const char *keep_logits_cuda(const KeepCall &, void *) { return "built without CUDA"; }
#endif

}  // namespace weft
