#include "drafting/lookahead.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

namespace weft {
namespace {

void check(const char *name, int value, int lowest, int most) {
  if (value < lowest || value > most)
    throw std::invalid_argument(std::string("lookahead's ") + name + " is " + std::to_string(value) + "; it must be " +
                                std::to_string(lowest) + " to " + std::to_string(most));
}

}  // namespace

LookaheadText::LookaheadText(LookaheadSettings settings, const std::vector<std::int32_t> &first, std::size_t reserve)
    : settings_(settings),
      pool_(settings.ngram, settings.verification, reserve),
      recent_(static_cast<std::size_t>(settings.ngram)),
      columns_(static_cast<std::size_t>(settings.window * settings.ngram)) {
  for (int i = 0; i < settings_.window; ++i)
    columns_[static_cast<std::size_t>(i * settings_.ngram)] = first[static_cast<std::size_t>(i)];
}

int LookaheadText::extend(std::int32_t *chain, int length, std::int32_t token) {
  if (length == settings_.ngram) {
    std::copy(chain + 1, chain + length, chain);
    --length;
  }
  chain[length++] = token;
  if (length == settings_.ngram) pool_.insert(chain);
  return length;
}

void LookaheadText::append(std::int32_t token) {
  num_recent_ = extend(recent_.data(), num_recent_, token);
  ++size_;
}

void LookaheadText::follow(const std::int64_t *window, std::int64_t position) {
  if (position != size_before_ - 1) return;
  int depth = depth_;
  for (int i = 0; i < settings_.window; ++i)
    depth =
        extend(&columns_[static_cast<std::size_t>(i * settings_.ngram)], depth_, static_cast<std::int32_t>(window[i]));
  depth_ = depth;
}

LookaheadSource::LookaheadSource(GuidedState &state, LookaheadSettings settings, const std::int64_t *window)
    : state_(state), settings_(settings), window_(window), guided_(state), texts_(state) {
  check("window", settings.window, 1, kMaxWindow);
  check("ngram", settings.ngram, 2, kMaxNgram);
  check("verification", settings.verification, 1, kMaxVerification);
}

void LookaheadSource::open(int slot, const std::int32_t *tokens, int count, int max_new_tokens,
                           LookaheadSettings settings, const std::vector<std::int32_t> &first) {
  check("window", settings.window, 1, std::min(settings_.window, static_cast<int>(first.size())));
  check("ngram", settings.ngram, 2, settings_.ngram);
  check("verification", settings.verification, 1, settings_.verification);
  const int most = std::min(count + std::max(max_new_tokens, 0), state_.shape().vocab_size);
  auto text = std::make_unique<LookaheadText>(settings, first, static_cast<std::size_t>(std::min(most, 4096)));
  for (int i = 0; i < count; ++i) text->append(tokens[i]);
  texts_.open(slot, std::move(text));
}

void LookaheadSource::commit(int slot, const std::int64_t *tokens, int count) {
  LookaheadText *text = texts_.of(slot);
  if (text) text->begin();
  for (int i = 0; text && i < count; ++i) text->append(static_cast<std::int32_t>(tokens[i]));
}

void LookaheadSource::observe(int slot) {
  LookaheadText *text = texts_.of(slot);
  const std::int64_t *row = window_ + static_cast<std::ptrdiff_t>(slot) * (settings_.window + 1);
  if (text) text->follow(row, row[settings_.window]);
}

int LookaheadSource::propose(int slot, std::int32_t *tokens, int have, int capacity) {
  const LookaheadText *text = texts_.of(slot);
  if (!text || text->is_empty() || have >= capacity) return 0;
  const std::int32_t *ngrams = nullptr;
  const int count = text->find(have ? tokens[have - 1] : text->last(), &ngrams);
  const int following = text->num_following(), more = std::min(following, capacity - have);
  const auto ngram = [&](int i) { return ngrams + static_cast<std::ptrdiff_t>(i) * following; };
  if (count == 0) return 0;
  if (!guided_.is_on() || !state_.is_guided(slot)) {
    std::copy(ngram(count - 1), ngram(count - 1) + more, tokens + have);
    return more;
  }
  std::int32_t tried[kMaxProposed];
  std::copy(tokens, tokens + have, tried);
  int best = have;
  for (int i = count - 1; i >= 0 && best < have + more; --i) {
    std::copy(ngram(i), ngram(i) + more, tried + have);
    const int taken = state_.validate(slot, tried, have + more);
    if (taken <= best) continue;
    std::copy(tried + have, tried + taken, tokens + have);
    best = taken;
  }
  return best - have;
}

}  // namespace weft
