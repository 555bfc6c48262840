// The mask rows of a guided state: filling and reading them.
#include <cstring>

#include "guided/state.h"

namespace weft {

bool GuidedState::is_allowed(int slot, int position, std::int64_t token) {
  if (token < 0 || token >= shape_.vocab_size) return false;
  return static_cast<std::uint32_t>(row(slot, position)[token / 32]) >> (token % 32) & 1u;
}

bool GuidedState::is_empty(const std::int32_t *row) const {
  const int last = shape_.words() - 1;
  for (int word = 0; word < last; ++word)
    if (row[word] != 0) return false;
  return (static_cast<std::uint32_t>(row[last]) & last_word_bits_) == 0;
}

// Returns the only token that a row allows, or -1 if it allows several or none.
std::int32_t GuidedState::only_token(const std::int32_t *row) const {
  std::int32_t only = -1;
  for (int word = 0; word < shape_.words(); ++word) {
    auto bits = static_cast<std::uint32_t>(row[word]);
    if (word == shape_.words() - 1) bits &= last_word_bits_;
    if (bits == 0) continue;
    if (only >= 0 || (bits & (bits - 1)) != 0) return -1;
    only = word * 32 + __builtin_ctz(bits);
  }
  return only;
}

GuidedState::Fill GuidedState::fill(int number, int position, Operation operation) {
  Slot &slot = slots_[number];
  std::int32_t *target = row(number, position);
  slot.rows[position] = Row::kFilled;
  const int outcome = slot.matcher->fill(target, shape_.words());
  counters_[operation].fills.fetch_add(1, std::memory_order_relaxed);
  if (outcome < 0) return fail_matcher(number, "filling a mask"), Fill::kFailed;
  buffers_.token_mask[row_index(number, position)] = outcome;
  set_temperature(number, position, slot.matcher->temperature());
  slot.clock.lap(GuideClock::kMasks);
  if (log_)
    slot.hashes[static_cast<std::size_t>(position)] = hash_row(target, shape_.words(), last_word_bits_, outcome);
  return is_empty(target) ? Fill::kEmpty : Fill::kDone;
}

void GuidedState::end_rows(int number, int from) {
  Slot &slot = slots_[number];
  for (int position = from; position <= shape_.max_drafts; ++position) {
    buffers_.token_mask[row_index(number, position)] = 1;
    if (slot.rows[position] == Row::kEndOnly) continue;
    std::memcpy(row(number, position), end_row_.data(), end_row_.size() * sizeof end_row_[0]);
    slot.rows[position] = Row::kEndOnly;
  }
}

}  // namespace weft
