#include "drafting/draft_sources.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

namespace weft {
namespace {

constexpr int kMaxCandidates = 32;
constexpr int kIterationsInFlight = 2;  // at most

}  // namespace

void GivenSource::open(int slot, const std::vector<std::int32_t> &text, const std::int32_t *answer, int num_answered) {
  for (std::int32_t token : text)
    if (token < 0 || token >= state_.shape().vocab_size)
      throw std::invalid_argument("the given text holds token id " + std::to_string(token) + "; ids are 0 to " +
                                  std::to_string(state_.shape().vocab_size - 1));
  auto opened = text.empty() ? nullptr : std::make_unique<GivenText>(text);
  for (int i = 0; opened && i < num_answered; ++i) opened->append(answer[i]);
  texts_.open(slot, std::move(opened));
}

void GivenSource::commit(int slot, const std::int64_t *tokens, int count) {
  GivenText *text = texts_.of(slot);
  for (int i = 0; text && i < count; ++i) text->append(static_cast<std::int32_t>(tokens[i]));
}

int GivenSource::propose(int slot, std::int32_t *tokens, int have, int capacity) {
  const GivenText *text = texts_.of(slot);
  // The given text continues the committed text, so it cannot follow another source's drafts.
  if (!text || have > 0) return 0;
  const int count = text->next(tokens, capacity);
  if (count == 0 || !guided_.is_on() || !state_.is_guided(slot)) return count;
  return state_.validate(slot, tokens, count);
}

int ForcedSource::propose(int slot, std::int32_t *tokens, int have, int capacity) {
  // The matcher's state is after the committed text, not after another source's drafts.
  return have > 0 ? 0 : state_.forced(slot, tokens, capacity);
}

NgramSource::NgramSource(GuidedState &state, NgramSettings settings)
    : state_(state), settings_(settings), guided_(state), texts_(state) {
  NgramIndex(settings.min_length, settings.max_length, 0);  // throws if the lengths are invalid
  if (settings.candidates < 1 || settings.candidates > kMaxCandidates)
    throw std::invalid_argument("the grammar chooses among 1 to " + std::to_string(kMaxCandidates) + " places");
}

void NgramSource::open(int slot, const std::int32_t *tokens, int count, int max_new_tokens) {
  // The text may overrun its limit: the host ends a sequence when it reads the iteration with the last token, and that
  // one and the next may be in flight. Each commits up to K drafts and the token after them.
  const int overrun = kIterationsInFlight * (state_.shape().max_drafts + 1);
  const int room = std::max(max_new_tokens, 0) + overrun;
  auto text = std::make_unique<NgramIndex>(settings_.min_length, settings_.max_length,
                                           static_cast<std::size_t>(count) + static_cast<std::size_t>(room));
  for (int i = 0; i < count; ++i) text->append(tokens[i]);
  texts_.open(slot, std::move(text));
}

void NgramSource::commit(int slot, const std::int64_t *tokens, int count) {
  NgramIndex *text = texts_.of(slot);
  for (int i = 0; text && i < count; ++i) text->append(static_cast<std::int32_t>(tokens[i]));
}

int NgramSource::propose(int slot, std::int32_t *tokens, int have, int capacity) {
  const NgramIndex *text = texts_.of(slot);
  if (!text || have >= capacity) return 0;
  if (guided_.is_on() && state_.is_guided(slot)) return choose(slot, *text, tokens, have, capacity);
  std::int32_t place;
  if (text->find(tokens, have, &place, 1) == 0) return 0;
  text->copy(place, tokens, have, tokens + have, capacity - have);
  return capacity - have;
}

// Tries the continuations of several earlier occurrences. Proposes the one with the longest prefix that the grammar
// accepts, and only that prefix.
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
