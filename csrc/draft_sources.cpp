#include "draft_sources.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace weft {
namespace {

constexpr int kMaxCandidates = 32;

}  // namespace

int ForcedSource::propose(int slot, std::int32_t *tokens, int have, int capacity) {
  // The matcher is at the committed text, not behind other sources' drafts.
  return have > 0 ? 0 : state_.forced(slot, tokens, capacity);
}

NgramSource::NgramSource(GuidedState &state, NgramSettings settings) : state_(state), settings_(settings) {
  NgramIndex(settings.min_length, settings.max_length, 0);  // throws
  if (settings.candidates < 1 || settings.candidates > kMaxCandidates)
    throw std::invalid_argument("the grammar chooses among 1 to " + std::to_string(kMaxCandidates) + " places");
  texts_.resize(static_cast<std::size_t>(state.shape().num_slots));
  opened_.reserve(texts_.size());
  closed_.reserve(2 * texts_.size());
}

void NgramSource::open(int slot, const std::int32_t *tokens, int count, int max_new_tokens) {
  if (slot < 0 || slot >= state_.shape().num_slots)
    throw std::invalid_argument("slot " + std::to_string(slot) + " is out of range");
  // An iteration commits up to K tokens beyond the last that counts, and two are in flight.
  const int room = std::max(max_new_tokens, 0) + 2 * (state_.shape().max_drafts + 1);
  auto text = std::make_unique<NgramIndex>(settings_.min_length, settings_.max_length,
                                           static_cast<std::size_t>(count) + static_cast<std::size_t>(room));
  for (int i = 0; i < count; ++i) text->append(tokens[i]);
  std::vector<std::unique_ptr<NgramIndex>> garbage;
  garbage.reserve(closed_.capacity());
  std::lock_guard<std::mutex> lock(mutex_);
  garbage.swap(closed_);
  opened_.push_back({slot, state_.pushed_epoch(), std::move(text)});
  has_opened_.store(true, std::memory_order_release);
}

void NgramSource::begin() {
  if (!has_opened_.load(std::memory_order_acquire)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  std::size_t kept = 0;
  for (Opened &opened : opened_) {
    if (opened.after_epoch < state_.epoch()) {
      std::swap(texts_[static_cast<std::size_t>(opened.slot)], opened.text);
      if (opened.text) closed_.push_back(std::move(opened.text));
    } else {
      std::swap(opened_[kept++], opened);
    }
  }
  opened_.resize(kept);
  has_opened_.store(!opened_.empty(), std::memory_order_relaxed);
}

void NgramSource::commit(int slot, const std::int64_t *tokens, int count) {
  NgramIndex *text = texts_[static_cast<std::size_t>(slot)].get();
  for (int i = 0; text && i < count; ++i) text->append(static_cast<std::int32_t>(tokens[i]));
}

int NgramSource::propose(int slot, std::int32_t *tokens, int have, int capacity) {
  const NgramIndex *text = texts_[static_cast<std::size_t>(slot)].get();
  if (!text || have >= capacity) return 0;
  if (guided_.load(std::memory_order_relaxed) && state_.is_guided(slot))
    return choose(slot, *text, tokens, have, capacity);
  std::int32_t place;
  if (text->find(tokens, have, &place, 1) == 0) return 0;
  text->copy(place, tokens, have, tokens + have, capacity - have);
  return capacity - have;
}

// Of a few places the one whose continuation the grammar takes for longest, up to what it refuses.
int NgramSource::choose(int slot, const NgramIndex &text, std::int32_t *tokens, int have, int capacity) const {
  std::int32_t places[kMaxCandidates], tried[kMaxProposed];
  const int count = text.find(tokens, have, places, settings_.candidates);
  std::copy(tokens, tokens + have, tried);
  int best = have;
  for (int i = 0; i < count && best < capacity; ++i) {
    text.copy(places[i], tokens, have, tried + have, capacity - have);
    const int taken = state_.validate(slot, tried, capacity);
    if (taken <= best) continue;
    std::copy(tried + have, tried + taken, tokens + have);
    best = taken;
  }
  return best - have;
}

}  // namespace weft
