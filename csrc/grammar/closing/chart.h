// The states of a text in a grammar: all its readings (ways to parse it), with the tokens needed to end each.
// Python-free.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/closing/grammar.h"

namespace weft {

class ClosingChart {
 public:
  static constexpr std::size_t kMaxReadings = 1024;
  static constexpr std::size_t kMaxFrames = 1 << 18;
  static constexpr std::size_t kMaxVisits = 1 << 16;

  // A reading of the text: its place in the grammar, and the frame to return to (-1: none).
  struct Reading {
    int at, frame;
    bool operator==(const Reading &other) const { return at == other.at && frame == other.frame; }
  };
  // All readings of a text. A reading's cost is the smallest known number of tokens to an end. `cheapest` and `dearest`
  // are the smallest and the largest cost.
  struct State {
    std::vector<Reading> readings;
    int cheapest = ClosingGrammar::kNever, dearest = ClosingGrammar::kNever;
  };
  using StateRef = std::shared_ptr<const State>;
  enum class Outcome { kTaken, kRefused, kTooLarge };

  explicit ClosingChart(std::shared_ptr<const ClosingGrammar> grammar);

  // The state of the empty text.
  StateRef start();
  // Advances `from` by `text`. `to` is null unless the grammar accepts the text.
  Outcome advance(const State &from, std::string_view text, StateRef &to);
  // Appends the shortest known end from the state to `text`, and the tokens that `cheapest` counts to `tokens`.
  void spell(const State &state, std::string &text, std::vector<std::int32_t> &tokens) const;

  std::size_t num_frames() const { return frames_.size(); }

 private:
  // A return address: the place before a rule, and the number of repetitions of the rule that are done after the
  // return.
  struct Frame {
    int at, count, parent, cost;
  };
  struct Key {
    int at, count, parent;
    bool operator==(const Key &other) const { return at == other.at && count == other.count && parent == other.parent; }
  };
  struct Hash {
    std::size_t operator()(const Key &key) const {
      std::uint64_t hash = static_cast<std::uint32_t>(key.at) * 0x9E3779B97F4A7C15u;
      hash = (hash ^ static_cast<std::uint32_t>(key.count)) * 0xBF58476D1CE4E5B9u;
      hash = (hash ^ static_cast<std::uint32_t>(key.parent)) * 0x94D049BB133111EBu;
      return static_cast<std::size_t>(hash ^ (hash >> 31));
    }
  };

  int frame_cost(int frame) const { return frame < 0 ? 0 : frames_[static_cast<std::size_t>(frame)].cost; }
  int cost(const Reading &reading) const {
    return ClosingGrammar::sum(grammar_->cost(reading.at), frame_cost(reading.frame));
  }
  int push(int at, int count, int parent);
  bool step(const std::vector<Reading> &from, unsigned char byte, std::vector<Reading> &to);
  StateRef finish(std::vector<Reading> readings) const;

  std::shared_ptr<const ClosingGrammar> grammar_;
  std::vector<Frame> frames_;  // each distinct frame once
  std::unordered_map<Key, int, Hash> numbers_;
  std::vector<Key> visits_;  // of the current step, in order; `seen_` indexes them once there are many
  std::unordered_map<Key, int, Hash> seen_;
};

}  // namespace weft
