#include "grammar/closing/chart.h"

#include <algorithm>
#include <utility>

namespace weft {
namespace {

constexpr std::size_t kFew = 24;  // up to this many keys a linear search is fastest

}  // namespace

ClosingChart::ClosingChart(std::shared_ptr<const ClosingGrammar> grammar) : grammar_(std::move(grammar)) {}

ClosingChart::StateRef ClosingChart::start() {
  std::vector<Reading> readings;
  for (const int first : grammar_->alternatives(0)) readings.push_back({first, -1});
  return finish(std::move(readings));
}

ClosingChart::StateRef ClosingChart::finish(std::vector<Reading> readings) const {
  auto state = std::make_shared<State>();
  state->dearest = 0;
  for (const Reading &reading : readings) {
    const int cost = this->cost(reading);
    state->cheapest = std::min(state->cheapest, cost);
    state->dearest = std::max(state->dearest, cost);
  }
  state->readings = std::move(readings);
  return state;
}

ClosingChart::Outcome ClosingChart::advance(const State &from, std::string_view text, StateRef &to) {
  std::vector<Reading> now = from.readings, next;
  to = nullptr;
  for (const char byte : text) {
    next.clear();
    if (!step(now, static_cast<unsigned char>(byte), next)) return Outcome::kTooLarge;
    if (next.empty()) return Outcome::kRefused;
    now.swap(next);
  }
  to = finish(std::move(now));
  return Outcome::kTaken;
}

// Returns the index of a frame and adds the frame if it is new. Returns -1 if there are too many.
int ClosingChart::push(int at, int count, int parent) {
  const auto [entry, is_new] = numbers_.try_emplace({at, count, parent}, static_cast<int>(frames_.size()));
  if (!is_new) return entry->second;
  if (frames_.size() >= kMaxFrames) {
    numbers_.erase(entry);
    return -1;
  }
  frames_.push_back({at, count, parent, ClosingGrammar::sum(grammar_->cost(at, count), frame_cost(parent))});
  return entry->second;
}

// Advances all readings by one byte: visits every place that is reachable without reading a byte, and keeps those that
// accept `byte`. Returns false if there are too many places or readings.
bool ClosingChart::step(const std::vector<Reading> &from, unsigned char byte, std::vector<Reading> &to) {
  using Place = ClosingGrammar::Place;
  visits_.clear();
  seen_.clear();
  const auto visit = [&](int at, int count, int frame) {
    const Key key{at, count, frame};
    if (visits_.size() < kFew) {
      if (std::find(visits_.begin(), visits_.end(), key) == visits_.end()) visits_.push_back(key);
      return;
    }
    if (seen_.empty())
      for (const Key &visited : visits_) seen_.emplace(visited, 0);
    if (seen_.emplace(key, 0).second) visits_.push_back(key);
  };
  for (const Reading &reading : from) visit(reading.at, 0, reading.frame);
  for (std::size_t i = 0; i < visits_.size(); ++i) {
    if (visits_.size() > kMaxVisits) return false;
    const Key here = visits_[i];
    const Place &place = grammar_->place(here.at);
    if (place.kind == Place::kByte) {
      const Reading reading{here.at + 1, here.parent};
      if (!grammar_->set(place.target)[byte] || std::find(to.begin(), to.end(), reading) != to.end()) continue;
      if (to.size() >= kMaxReadings) return false;
      to.push_back(reading);
    } else if (place.kind == Place::kEnd) {
      if (here.parent < 0) continue;
      const Frame &frame = frames_[static_cast<std::size_t>(here.parent)];
      visit(frame.at, frame.count, frame.parent);
    } else {
      if (here.count >= place.min_times) visit(here.at + 1, 0, here.parent);
      if (place.max_times >= 0 && here.count >= place.max_times) continue;
      // Without a maximum, counts from min_times on are equivalent. Treating them as one bounds the number of frames.
      const int count = place.max_times < 0 ? std::min(here.count + 1, place.min_times) : here.count + 1;
      // A rule at the end of its alternative is a tail call: it returns directly to this rule's caller, so it needs no
      // frame.
      int frame = here.parent;
      if (!(place.is_last && count == place.max_times) && (frame = push(here.at, count, here.parent)) < 0) return false;
      for (const int first : grammar_->alternatives(place.target)) visit(first, 0, frame);
    }
  }
  return true;
}

void ClosingChart::spell(const State &state, std::string &text, std::vector<std::int32_t> &tokens) const {
  const auto best = std::find_if(state.readings.begin(), state.readings.end(),
                                 [&](const Reading &reading) { return cost(reading) == state.cheapest; });
  if (best == state.readings.end()) return;
  grammar_->spell(best->at, 0, text, tokens);
  for (int number = best->frame; number >= 0; number = frames_[static_cast<std::size_t>(number)].parent) {
    const Frame &frame = frames_[static_cast<std::size_t>(number)];
    grammar_->spell(frame.at, frame.count, text, tokens);
  }
}

}  // namespace weft
