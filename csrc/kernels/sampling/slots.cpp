#include "kernels/sampling/slots.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/sampling/advance_rule.h"
#include "kernels/sampling/penalty_rule.h"
#include "kernels/sampling/sample_rule.h"
#include "kernels/sampling/suppress_ends.h"
#include "kernels/sampling/truncation_rule.h"

namespace weft {
namespace {

// Whether the predicate `asks` is true for any slot of the call.
template <class F>
bool any_slot(const SlotCall &call, F &&asks) {
  const std::int64_t rows = call.logits.rows / call.positions;
  for (std::int64_t b = 0; b < rows; ++b) {
    if (asks(call.slot_of(b * call.positions))) return true;
  }
  return false;
}

// Parameters of each row for the calls that do one step each. A row of the padding slot has slot -1 and temperature 0,
// so that no step changes or reads its logits.
struct Rows {
  std::vector<std::int64_t> slot, length, position, seen, extra;
  std::vector<float> temperature, floor;
  std::vector<Cuts> cuts;
  std::vector<RowDraw> draws;
};

// Sets `values` to of(0), ..., of(count - 1).
template <class T, class F>
void fill(std::vector<T> &values, std::int64_t count, F &&of) {
  values.clear();
  for (std::int64_t i = 0; i < count; ++i) values.push_back(of(i));
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

// Writes the floor of each row to `r.floor`.
void truncate(const SlotCall &call, Rows &r, int threads) {
  const std::int64_t rows = call.logits.rows, vocab = call.logits.vocab;
  const auto row = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  fill(r.cuts, rows,
       [&](std::int64_t i) { return Cuts(call.record_of(i), r.temperature[row(i)], call.top_p_of(i), vocab); });
  fill(r.floor, rows, [](std::int64_t) { return -kInfinity; });
  const bool cuts_any = std::any_of(r.cuts.begin(), r.cuts.end(), [](const Cuts &cuts) { return cuts.any(); });
  if (cuts_any) truncation_floor_cpu({call.logits, r.cuts.data(), r.floor.data()}, threads);
}

void draw(const SlotCall &call, Rows &r, int threads) {
  const auto row = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  fill(r.draws, call.logits.rows, [&](std::int64_t i) {
    RowDraw draw(r.temperature[row(i)], r.floor[row(i)], call.record_of(i).seed, r.position[row(i)]);
    draw.is_skipped = call.is_padding(i);
    return draw;
  });
  sample_cpu({call.logits, r.draws.data(), call.d2t, call.out}, threads);
}

}  // namespace

void sample_slots_cpu(const SlotCall &call, int threads) {
  static thread_local Rows r;
  const SlotTables &tables = call.tables;
  const std::int64_t rows = call.logits.rows;
  fill(r.slot, rows, [&](std::int64_t i) { return call.is_padding(i) ? -1 : call.slot[i / call.positions]; });
  fill(r.position, rows, [&](std::int64_t i) { return call.position_of(i); });
  fill(r.temperature, rows, [&](std::int64_t i) { return call.is_padding(i) ? 0 : call.temperature_of(i); });
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
  truncate(call, r, threads);
  draw(call, r, threads);
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
