#include "grammar/closing/growth.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace weft {
namespace {

constexpr int kNever = ClosingGrammar::kNever;
constexpr std::int64_t kMaxWork = 300'000'000;  // about a second
constexpr int kMaxLevel = 64;                   // above it, levels are kLevelStep apart
constexpr int kLevelStep = 16;

// A place, and the growth of the cost (see growth.h) on the way to it.
using Weighted = std::pair<int, int>;

int grown(int by, int more) { return by >= kNever || more >= kNever ? kNever : std::min(kNever, by + more); }

int change(int before, int after) {
  if (after >= kNever) return kNever;
  return before >= kNever ? 0 : after - before;
}

// A deterministic automaton over bytes. A state is a set of places with weights, normalised so that the greatest weight
// is 0.
class Walk {
 public:
  explicit Walk(const ClosingGrammar &grammar) : grammar_(grammar), closures_(), callers_() {
    const auto places = static_cast<std::size_t>(grammar.num_places());
    closures_.resize(places);
    is_closed_.resize(places);
    callers_.resize(static_cast<std::size_t>(grammar.num_rules()));
    for (int at = 0; at < grammar.num_places(); ++at)
      if (grammar.place(at).kind == Place::kRule)
        callers_[static_cast<std::size_t>(grammar.place(at).target)].push_back(at);
    State all;
    for (int at = 0; at < grammar.num_places(); ++at) all.emplace_back(at, 0);
    add(std::move(all));  // the first state has all places: a reading may be at any of them
  }

  struct Step {
    int state = -1;  // -1: no text of the grammar continues like this
    int growth = 0;
  };

  Step step(int state, unsigned char byte) {
    const std::uint64_t key = static_cast<std::uint64_t>(state) << 8 | byte;
    const auto entry = steps_.find(key);
    if (entry != steps_.end()) return entry->second;
    return steps_.emplace(key, take(state, byte)).first->second;
  }

 private:
  using Place = ClosingGrammar::Place;
  using State = std::vector<Weighted>;  // by place

  int add(State state) {
    const auto [entry, is_new] = numbers_.try_emplace(std::move(state), static_cast<int>(states_.size()));
    if (is_new) states_.push_back(&entry->first);
    return entry->second;
  }

  void work(std::size_t amount) {
    if ((work_ += static_cast<std::int64_t>(amount)) > kMaxWork)
      throw std::invalid_argument("the grammar is too large to tell how much a token can add to the shortest end");
  }

  Step take(int number, unsigned char byte) {
    std::unordered_map<int, int> next;
    const State &state = *states_[static_cast<std::size_t>(number)];
    for (const auto &[from, weight] : state) {
      const State &closure = closed(from);
      work(1 + closure.size());
      for (const auto &[at, more] : closure) {
        if (!grammar_.set(grammar_.place(at).target)[byte]) continue;
        const int total = grown(grown(weight, more), change(grammar_.cost(at), grammar_.cost(at + 1)));
        const auto [entry, is_new] = next.try_emplace(at + 1, total);
        if (!is_new) entry->second = std::max(entry->second, total);
      }
    }
    if (next.empty()) return {};
    State after(next.begin(), next.end());
    std::sort(after.begin(), after.end());
    int greatest = -kNever;
    for (const Weighted &weighted : after) greatest = std::max(greatest, weighted.second);
    for (Weighted &weighted : after)
      if (weighted.second < kNever) weighted.second -= greatest < kNever ? greatest : 0;
    return {add(std::move(after)), greatest};
  }

  // Returns the places before a byte that can be reached from `from` without reading a byte, each with the greatest
  // growth of the cost on the way.
  //
  // Entering a rule and leaving it again without a byte is the same as skipping it. So a return here leaves a rule that
  // was entered earlier. The walk does not know its caller, so the return may lead to any caller.
  const State &closed(int from) {
    const auto f = static_cast<std::size_t>(from);
    if (is_closed_[f]) return closures_[f];
    // How a place was reached:
    //   kArrived   it is `from`, or the place before it was passed. A rule after the place has not been repeated yet.
    //   kReturned  from the end of the rule after the place, which has been repeated at least once.
    //   kEntered   as kArrived, and without a byte since the rule that contains the place was entered.
    enum How { kArrived, kReturned, kEntered };
    std::unordered_map<int, int> best;
    std::vector<int> open;
    const auto reach = [&](int at, How how, int weight) {
      const int node = at * 3 + how;
      const auto [entry, is_new] = best.try_emplace(node, weight);
      if (!is_new && entry->second >= weight) return;
      entry->second = weight;
      open.push_back(node);
    };
    reach(from, kArrived, 0);
    while (!open.empty()) {
      const int node = open.back(), at = node / 3, weight = best[node];
      const How how = static_cast<How>(node % 3);
      open.pop_back();
      const Place &place = grammar_.place(at);
      work(1);
      if (place.kind == Place::kEnd) {
        if (how == kEntered) continue;
        const auto &callers = callers_[static_cast<std::size_t>(place.target)];
        work(callers.size());
        for (const int caller : callers) reach(caller, kReturned, weight);
      } else if (place.kind == Place::kRule) {
        const bool has_returned = how == kReturned;
        if (has_returned || place.min_times == 0) reach(at + 1, how == kEntered ? kEntered : kArrived, weight);
        if (has_returned && place.max_times == 1) continue;
        // With `count` repetitions done, the reading's cost from here is max(min - count, 0) * rule_cost + cost(at +
        // 1). In the next repetition it is cost(first), plus the same with count + 1. So it changes by cost(first) -
        // rule_cost if count < min: this repetition is required and was counted. Else it changes by cost(first). The
        // count is 0 on arrival. After a return it is anything from 1 to max - 1. If min == max, all of these are below
        // min. Otherwise some may not be, and the larger change is the bound.
        const bool was_counted = place.min_times == place.max_times || (!has_returned && place.min_times > 0);
        const int before = was_counted ? grammar_.rule_cost(place.target) : 0;
        for (const int first : grammar_.alternatives(place.target))
          reach(first, kEntered, grown(weight, change(before, grammar_.cost(first))));
      }
    }
    std::unordered_map<int, int> places;
    for (const auto &[node, weight] : best)
      if (grammar_.place(node / 3).kind == Place::kByte) {
        const auto [entry, is_new] = places.try_emplace(node / 3, weight);
        if (!is_new) entry->second = std::max(entry->second, weight);
      }
    is_closed_[f] = true;
    return closures_[f] = State(places.begin(), places.end());
  }

  const ClosingGrammar &grammar_;
  std::vector<State> closures_;
  std::vector<bool> is_closed_;
  std::vector<std::vector<int>> callers_;  // by rule
  std::map<State, int> numbers_;
  std::vector<const State *> states_;
  std::unordered_map<std::uint64_t, Step> steps_;
  std::int64_t work_ = 0;
};

}  // namespace

ClosingGrowth::ClosingGrowth(const ClosingGrammar &grammar, int vocab_size, const std::vector<std::int32_t> &end_tokens)
    : vocab_size_(vocab_size), words_((vocab_size + 31) / 32), end_tokens_(end_tokens) {
  if (end_tokens_.empty()) throw std::invalid_argument("the vocabulary has no end token");
  growth_.assign(static_cast<std::size_t>(vocab_size), kNever);
  find(grammar);
  fill_masks();
}

// Finds each token's growth. Tokens are processed in the order of their texts, so that a common prefix is walked once.
void ClosingGrowth::find(const ClosingGrammar &grammar) {
  Walk walk(grammar);
  std::vector<std::int32_t> tokens;
  for (std::int32_t token = 0; token < vocab_size_; ++token)
    if (!grammar.texts().text(token).empty()) tokens.push_back(token);
  std::sort(tokens.begin(), tokens.end(), [&](std::int32_t left, std::int32_t right) {
    return grammar.texts().text(left) < grammar.texts().text(right);
  });
  std::vector<Walk::Step> path{{0, 0}};  // the step after each prefix of the last text
  std::string_view last;
  for (const std::int32_t token : tokens) {
    const std::string_view text = grammar.texts().text(token);
    std::size_t shared = 0;
    while (shared + 1 < path.size() && shared < text.size() && shared < last.size() && text[shared] == last[shared])
      ++shared;
    path.resize(shared + 1);
    last = text;
    for (std::size_t i = shared; i < text.size() && path.back().state >= 0; ++i) {
      Walk::Step step = walk.step(path.back().state, static_cast<unsigned char>(text[i]));
      step.growth = grown(path.back().growth, step.growth);
      path.push_back(step);
    }
    if (path.size() != text.size() + 1 || path.back().state < 0) continue;
    growth_[static_cast<std::size_t>(token)] = path.back().growth;
    greatest_ = std::max(greatest_, path.back().growth);
  }
}

void ClosingGrowth::fill_masks() {
  for (int &growth : growth_) {
    if (growth >= kNever) continue;
    if (growth > kMaxLevel) growth += (kLevelStep - growth % kLevelStep) % kLevelStep;
    levels_.push_back(growth);
  }
  std::sort(levels_.begin(), levels_.end());
  levels_.erase(std::unique(levels_.begin(), levels_.end()), levels_.end());
  masks_.assign((levels_.size() + 1) * static_cast<std::size_t>(words_), 0);
  for (std::size_t level = 0; level <= levels_.size(); ++level) {
    std::int32_t *mask = masks_.data() + level * static_cast<std::size_t>(words_);
    const auto set = [&](std::int32_t token) {
      mask[token / 32] = static_cast<std::int32_t>(static_cast<std::uint32_t>(mask[token / 32]) | 1u << (token % 32));
    };
    for (const std::int32_t token : end_tokens_) set(token);
    for (std::int32_t token = 0; level > 0 && token < vocab_size_; ++token)
      if (growth_[static_cast<std::size_t>(token)] <= levels_[level - 1]) set(token);
  }
}

const std::int32_t *ClosingGrowth::mask(int growth) const {
  const auto level = std::upper_bound(levels_.begin(), levels_.end(), growth) - levels_.begin();
  return masks_.data() + static_cast<std::size_t>(level) * static_cast<std::size_t>(words_);
}

bool ClosingGrowth::is_end(std::int32_t token) const {
  return std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
}

std::size_t ClosingGrowth::num_bytes() const { return (growth_.size() + masks_.size()) * 4; }

}  // namespace weft
