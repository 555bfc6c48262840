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

// Whether `asks(slot)` is true for any slot of the call.
template <class F>
bool any_slot(const SlotCall &call, F &&asks) {
  const std::int64_t rows = call.logits.rows / call.positions;
  for (std::int64_t b = 0; b < rows; ++b) {
    if (asks(call.slot_of(b * call.positions))) return true;
  }
  return false;
}

// Per-row parameters of the calls that do the single steps.
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
  penalize_cpu({call.logits, call.tables, r.slot.data(), r.length.data(), r.extra.data(), r.seen.data(), width,
                call.d2t, r.temperature.data()},
               threads);
}

const float *truncate(const SlotCall &call, Rows &r, int threads) {
  const std::int64_t rows = call.logits.rows;
  fill(r.top_k, rows, [&](std::int64_t i) { return call.record_of(i).top_k; });
  fill(r.min_p, rows, [&](std::int64_t i) { return call.record_of(i).min_p; });
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
  fill(r.position, rows, [&](std::int64_t i) { return call.position_of(i); });
  fill(r.seed, rows, [&](std::int64_t i) { return call.record_of(i).seed; });
  fill(r.temperature, rows, [&](std::int64_t i) { return call.temperature_of(i); });
  if (any_slot(call, [&](std::int64_t s) { return tables.changes_logits(s); })) penalize(call, r, threads);
  bool blocks_ends = false;
  for (std::int64_t i = 0; i < rows; ++i)
    blocks_ends |= r.position[static_cast<std::size_t>(i)] < call.record_of(i).ends_allowed_from;
  if (call.keeps_min_tokens && blocks_ends) {
    suppress_ends_cpu({call.logits, tables, r.slot.data(), r.position.data()}, threads);
  }
  if (any_slot(call, [&](std::int64_t s) { return tables.levels(s); })) {
    level_cpu({call.logits, tables, r.slot.data()}, threads);
  }
  fill(r.top_p, rows, [&](std::int64_t i) { return call.top_p_of(i); });
  bool truncates =
      any_slot(call, [&](std::int64_t s) { return tables.records[s].top_k > 0 || tables.records[s].min_p > 0; });
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
    if (!call.keeps(i)) continue;
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
