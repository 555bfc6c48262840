#include "grammar/after/rules.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace weft {
namespace {

void set(std::int32_t *row, std::int32_t token) {
  row[token / 32] = static_cast<std::int32_t>(static_cast<std::uint32_t>(row[token / 32]) | 1u << (token % 32));
}

void clear(std::int32_t *row, std::int32_t token) {
  row[token / 32] = static_cast<std::int32_t>(static_cast<std::uint32_t>(row[token / 32]) & ~(1u << (token % 32)));
}

const std::vector<std::int32_t> kNothing;

std::vector<std::int32_t> row_of_texts(const TokenTexts &texts, int vocab_size) {
  std::vector<std::int32_t> row(static_cast<std::size_t>((vocab_size + 31) / 32));
  for (std::int32_t token = 0; token < vocab_size; ++token)
    if (!texts.text(token).empty()) set(row.data(), token);
  return row;
}

}  // namespace

AfterRules::AfterRules(std::shared_ptr<const TokenTexts> texts, int vocab_size, std::int32_t token)
    : texts_(std::move(texts)), vocab_size_(vocab_size), token_(token), free_row_(row_of_texts(*texts_, vocab_size)) {
  set(free_row_.data(), token);
}

AfterRules::AfterRules(std::shared_ptr<const TokenTexts> texts, int vocab_size, std::string trigger)
    : texts_(std::move(texts)),
      vocab_size_(vocab_size),
      trigger_(std::move(trigger)),
      fallback_(trigger_.size()),
      free_row_(row_of_texts(*texts_, vocab_size)),
      completions_(trigger_.size()),
      spellings_(trigger_.size()) {
  // The Knuth-Morris-Pratt failure function: `fallback_[n]` is the fallback of the first n bytes of the trigger.
  for (std::size_t n = 1, matched = 0; n + 1 < trigger_.size(); ++n) {
    while (matched > 0 && trigger_[n] != trigger_[matched]) matched = static_cast<std::size_t>(fallback_[matched]);
    if (trigger_[n] == trigger_[matched]) ++matched;
    fallback_[n + 1] = static_cast<int>(matched);
  }
  find_completions();
}

int AfterRules::next(int state, unsigned char byte) const {
  while (static_cast<unsigned char>(trigger_[static_cast<std::size_t>(state)]) != byte) {
    if (state == 0) return 0;
    state = fallback_[static_cast<std::size_t>(state)];
  }
  return state + 1;
}

int AfterRules::rest_of(const std::string &text) {
  const auto [at, is_new] = rest_numbers_.emplace(text, static_cast<int>(rests_.size()));
  if (is_new) rests_.push_back({text, {}, text.empty()});
  return at->second;
}

// Finds the tokens that complete the trigger, for each state. A token of n bytes can do so only in states where at most
// n bytes are missing.
void AfterRules::find_completions() {
  const int length = static_cast<int>(trigger_.size());
  for (std::int32_t token = 0; token < vocab_size_; ++token) {
    const std::string_view text = texts_->text(token);
    if (text.find(trigger_.back()) == text.npos) continue;
    for (int state = std::max(0, length - static_cast<int>(text.size())); state < length; ++state) {
      int at = state;
      for (std::size_t i = 0; i < text.size(); ++i) {
        if ((at = next(at, static_cast<unsigned char>(text[i]))) < length) continue;
        completions_[static_cast<std::size_t>(state)].push_back({token, rest_of(std::string(text.substr(i + 1)))});
        break;
      }
    }
  }
}

std::string AfterRules::settle(MatcherHandle &guide) {
  for (Rest &rest : rests_) {
    if (rest.text.empty()) continue;
    rest.tokens.resize(TokenTexts::kMaxBytes);
    rest.tokens.resize(static_cast<std::size_t>(texts_->encode(rest.text, rest.tokens.data())));
    std::size_t spelled = 0;
    for (std::int32_t token : rest.tokens) spelled += texts_->text(token).size();
    // A rest that the vocabulary cannot spell is never allowed.
    if (spelled != rest.text.size()) continue;
    int taken = 0, outcome = 1;
    for (std::int32_t token : rest.tokens) {
      if ((outcome = guide.accept(token)) != 1) break;
      ++taken;
    }
    if (outcome < 0) return guide.error();
    if (guide.rollback(taken + (outcome > 1)) != 0) return guide.error();
    rest.is_taken = outcome == 1;
  }
  find_spellings();
  return "";
}

// Finds the tokens that are allowed in each state while the trigger is forced: those after which the trigger can still
// be spelled. A token may lead to a later state, so states are done from the last to the first.
void AfterRules::find_spellings() {
  for (int state = static_cast<int>(trigger_.size()) - 1; state >= 0; --state) {
    const std::string_view rest = missing(state);
    std::vector<std::int32_t> &spellings = spellings_[static_cast<std::size_t>(state)];
    for (std::size_t length = 1; length < rest.size(); ++length) {
      const std::int32_t token = texts_->find(rest.substr(0, length));
      if (token >= 0 && !spellings_[static_cast<std::size_t>(state) + length].empty()) spellings.push_back(token);
    }
    for (const Completion &match : completions_[static_cast<std::size_t>(state)])
      if (rests_[static_cast<std::size_t>(match.rest)].is_taken &&
          texts_->text(match.token).substr(0, rest.size()) == rest)
        spellings.push_back(match.token);
    std::sort(spellings.begin(), spellings.end());
  }
}

bool AfterRules::can_end() const {
  if (token_ >= 0) return true;
  for (const auto &completions : completions_)
    for (const Completion &match : completions)
      if (rests_[static_cast<std::size_t>(match.rest)].is_taken) return true;
  return false;
}

bool AfterRules::can_be_forced() const {
  return std::none_of(spellings_.begin(), spellings_.end(), [](const auto &tokens) { return tokens.empty(); });
}

const AfterRules::Completion *AfterRules::completion(int state, std::int32_t token) const {
  const std::vector<Completion> &all = completions_[static_cast<std::size_t>(state)];
  const auto at = std::lower_bound(all.begin(), all.end(), token,
                                   [](const Completion &match, std::int32_t wanted) { return match.token < wanted; });
  return at != all.end() && at->token == token ? &*at : nullptr;
}

AfterRules::Step AfterRules::step(int state, std::int32_t token, bool is_forced) const {
  if (token < 0 || token >= vocab_size_) return {};
  if (token == token_) return {0, &kNothing};
  const std::string_view text = texts_->text(token);
  if (text.empty() || (is_forced && token_ >= 0)) return {};
  if (token_ >= 0) return {0, nullptr};
  if (is_forced) {
    const std::vector<std::int32_t> &spellings = spellings_[static_cast<std::size_t>(state)];
    if (!std::binary_search(spellings.begin(), spellings.end(), token)) return {};
  }
  if (const Completion *match = completion(state, token)) {
    const Rest &rest = rests_[static_cast<std::size_t>(match->rest)];
    return rest.is_taken ? Step{0, &rest.tokens} : Step{};
  }
  for (const char byte : text) state = next(state, static_cast<unsigned char>(byte));
  return {state, nullptr};
}

void AfterRules::fill(int state, bool is_forced, std::int32_t *row) const {
  if (is_forced) {
    std::memset(row, 0, free_row_.size() * sizeof *row);
    if (token_ >= 0) return set(row, token_);
    for (std::int32_t token : spellings_[static_cast<std::size_t>(state)]) set(row, token);
    return;
  }
  std::memcpy(row, free_row_.data(), free_row_.size() * sizeof *row);
  if (token_ >= 0) return;
  for (const Completion &match : completions_[static_cast<std::size_t>(state)])
    if (!rests_[static_cast<std::size_t>(match.rest)].is_taken) clear(row, match.token);
}

std::size_t AfterRules::memory_bytes() const {
  std::size_t bytes = sizeof *this + free_row_.size() * sizeof free_row_[0];
  for (const auto &completions : completions_) bytes += completions.size() * sizeof(Completion);
  for (const auto &spellings : spellings_) bytes += spellings.size() * sizeof spellings[0];
  for (const Rest &rest : rests_) bytes += 2 * (sizeof rest + rest.text.size()) + rest.tokens.size() * sizeof(int);
  return bytes;
}

}  // namespace weft
