#include "kernels/layer/state_rows.h"

#include <algorithm>
#include <cstring>

#include "support/kernel_threads.h"

namespace weft {
namespace {

std::int64_t first_of(const StateRows &rows, std::int64_t b) { return rows.starts ? rows.starts[b] : b * rows.width; }

std::int64_t count_of(const StateRows &rows, std::int64_t b) {
  return rows.starts ? rows.starts[b + 1] - rows.starts[b] : rows.width;
}

bool is_padding(std::int64_t slot, std::int64_t num_slots) { return slot < 0 || slot >= num_slots - 1; }

}  // namespace

const Chains &chains_of(const StateRows &rows, std::int64_t max_owed) {
  struct Scratch {
    Chains chains;
    std::vector<std::int64_t> order, chain_of;
  };
  static thread_local Scratch scratch;
  Chains &all = scratch.chains;
  std::vector<std::int64_t> &order = scratch.order, &chain_of = scratch.chain_of;
  all.chains.clear(), all.rows.clear(), order.clear(), all.tokens = 0;
  chain_of.assign(static_cast<std::size_t>(rows.num_slots), -1);
  // Speculative rows come last in their chains.
  for (std::int64_t n = 0; n < rows.rows; ++n) {
    const std::int64_t b = (n + rows.speculative) % rows.rows;
    if (count_of(rows, b) <= 0 || is_padding(rows.slots[b], rows.num_slots)) continue;
    std::int64_t &at = chain_of[static_cast<std::size_t>(rows.slots[b])];
    if (at < 0) {
      at = static_cast<std::int64_t>(all.chains.size());
      const std::int64_t slot = rows.slots[b];
      const bool begins = rows.base[b] + (rows.count ? rows.count[b] : 0) + rows.offset == 0;
      all.chains.push_back({slot, begins ? -1 : rows.source[slot], rows.target[slot],
                            begins ? 0 : std::clamp<std::int64_t>(rows.owed[slot], 0, max_owed), 0, 0, 0});
    }
    Chain &chain = all.chains[static_cast<std::size_t>(at)];
    chain.end += 1, chain.tokens += count_of(rows, b), all.tokens += count_of(rows, b);
    order.push_back(b);
  }
  std::int64_t place = 0;
  for (Chain &chain : all.chains) {
    const std::int64_t count = chain.end;
    chain.begin = chain.end = place;
    place += count;
  }
  all.rows.resize(static_cast<std::size_t>(place));
  for (const std::int64_t b : order) {
    Chain &chain = all.chains[static_cast<std::size_t>(chain_of[static_cast<std::size_t>(rows.slots[b])])];
    const bool is_speculative = b < rows.speculative;
    all.rows[static_cast<std::size_t>(chain.end++)] = {
        first_of(rows, b), count_of(rows, b), rows.saves && !is_speculative ? rows.saves[b] : -1, is_speculative};
  }
  return all;
}

void clear_padding(const StateRows &rows, float *out, std::int64_t size) {
  if (rows.starts) return;
  for (std::int64_t b = 0; b < rows.rows; ++b)
    if (is_padding(rows.slots[b], rows.num_slots)) std::fill_n(out + b * rows.width * size, rows.width * size, 0.0f);
}

void open_states_cpu(const StatesCall &call, const std::int64_t *slots, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (is_padding(slots[i], call.num_slots)) continue;
    call.source[slots[i]] = call.target[slots[i]];
    call.owed[slots[i]] = 0;
  }
}

void load_states_cpu(const StatesCall &call, const std::int64_t *sources, const std::int64_t *slots,
                     std::int64_t count) {
  constexpr std::int64_t kPiece = 1 << 14;  // floats
  const std::int64_t pieces = (call.row + kPiece - 1) / kPiece;
  for_rows(count * pieces, call.threads, kPiece * 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t u = begin; u < end; ++u) {
      const std::int64_t i = u / pieces, at = u % pieces * kPiece, size = std::min(kPiece, call.row - at);
      if (is_padding(slots[i], call.num_slots)) continue;
      std::memmove(call.storage + call.target[slots[i]] * call.row + at, call.storage + sources[i] * call.row + at,
                   static_cast<std::size_t>(size) * sizeof(float));
    }
  });
  open_states_cpu(call, slots, count);
}

void branch_states_cpu(const StatesCall &call, const std::int64_t *slots, const std::int64_t *parents,
                       std::int64_t count) {
  const auto is_skipped = [&](std::int64_t i) {
    return is_padding(slots[i], call.num_slots) || is_padding(parents[i], call.num_slots);
  };
  // All sources are set before any target changes, since a slot may be a parent too.
  for (std::int64_t i = 0; i < count; ++i)
    if (!is_skipped(i)) call.source[slots[i]] = call.target[parents[i]];
  for (std::int64_t i = 0; i < count; ++i) {
    if (is_skipped(i)) continue;
    std::int64_t &target = call.target[slots[i]];
    target = target == slots[i] ? slots[i] + call.num_slots : slots[i];
    call.owed[slots[i]] = 0;
  }
}

}  // namespace weft
