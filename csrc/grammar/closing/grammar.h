// A grammar over bytes with costs: for each place in it, the smallest known number of tokens to an end.
//
// It only measures length; the grammar library's matcher decides which tokens may follow. A cost is an upper bound for
// every tokenization of the text so far, because it counts the rest of a literal text as separate tokens. Python-free.
// Immutable, so any number of matchers and threads share one.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "matcher/forced_text.h"

namespace weft {

class ClosingGrammar {
 public:
  static constexpr int kNever = 1 << 28;  // no end is known

  // An element of an alternative: literal `bytes`, one byte of `set`, or `rule`, repeated `min_times` to `max_times`
  // times (-1: without limit).
  struct Element {
    int rule = -1;
    int min_times = 1, max_times = 1;
    std::string bytes;
    std::bitset<256> set;
  };
  using Alternative = std::vector<Element>;
  using Rule = std::vector<Alternative>;

  // A place within an alternative: before a byte, before a rule, or at the end.
  struct Place {
    enum Kind : std::uint8_t { kByte, kRule, kEnd };
    Kind kind;
    int target;                // the set of a kByte, the rule of a kRule, the rule that a kEnd ends
    int min_times, max_times;  // of kRule
    bool is_last;              // of kRule: it is the alternative's last element
  };

  // Rule 0 is the root. Throws std::invalid_argument, with the reason, for a grammar that the chart cannot follow.
  ClosingGrammar(const std::vector<Rule> &rules, std::shared_ptr<const TokenTexts> texts);

  int num_places() const { return static_cast<int>(places_.size()); }
  int num_rules() const { return static_cast<int>(first_.size()); }
  const Place &place(int at) const { return places_[static_cast<std::size_t>(at)]; }
  const std::bitset<256> &set(int number) const { return sets_[static_cast<std::size_t>(number)]; }
  const std::vector<int> &alternatives(int rule) const { return first_[static_cast<std::size_t>(rule)]; }
  const TokenTexts &texts() const { return *texts_; }

  // The smallest known number of tokens from a place to the end of its alternative. `count` is for a place before a
  // rule: this many repetitions of the rule are already done.
  int cost(int at) const { return cost_[static_cast<std::size_t>(at)]; }
  int cost(int at, int count) const;
  int rule_cost(int rule) const { return rule_cost_[static_cast<std::size_t>(rule)]; }

  // Appends the text whose tokens `cost(at, count)` counts to `text`, and these tokens to `tokens`.
  void spell(int at, int count, std::string &text, std::vector<std::int32_t> &tokens) const;

  std::size_t num_bytes() const;

  static int sum(int a, int b) { return a >= kNever || b >= kNever || a + b >= kNever ? kNever : a + b; }
  static int times(int count, int cost);

 private:
  // The text of the places from one up to place `end`, a byte for each. It is tokenized separately.
  struct Piece {
    std::string text;
    int end = 0, num_tokens = kNever;
  };

  void add(int rule, const Alternative &alternative);
  int add_set(const std::bitset<256> &set);
  void find_costs();
  void check_recursion() const;
  Piece piece(int at) const;
  char easiest(const std::bitset<256> &set) const;

  std::vector<Place> places_;
  std::vector<std::bitset<256>> sets_;
  std::vector<char> bytes_;              // by set: the byte to write for it (see `easiest`)
  std::vector<bool> has_byte_;           // by set
  std::vector<std::vector<int>> first_;  // by rule: the first places of its alternatives
  std::vector<int> cost_, rule_cost_, best_;
  std::vector<Piece> pieces_;  // by place, for those before a byte
  std::shared_ptr<const TokenTexts> texts_;
};

}  // namespace weft
