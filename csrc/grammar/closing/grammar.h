// A grammar over bytes, with what it costs to end: the fewest tokens known from each of its places.
//
// It measures length and nothing else: what a text may go on with is said by the grammar library's matcher. A cost is
// an upper bound that holds however the text before is spelled, since literal text is counted as the tokens of its
// rest. Python-free. Never changes, so any number of matchers and threads share one.
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

  // An element of an alternative: literal `bytes`, one byte of `set`, or `rule`, `least` to `most` times (-1: any).
  struct Element {
    int rule = -1;
    int least = 1, most = 1;
    std::string bytes;
    std::bitset<256> set;
  };
  using Alternative = std::vector<Element>;
  using Rule = std::vector<Alternative>;

  // A place within an alternative: before a byte, before a rule, or at the end.
  struct Place {
    enum Kind : std::uint8_t { kByte, kRule, kEnd };
    Kind kind;
    int target;       // of kByte the number of its set, of kRule the rule; of kEnd the rule that ends
    int least, most;  // of kRule
    bool is_last;     // of kRule: nothing follows in the alternative
  };

  // Rule 0 is the root. Throws std::invalid_argument for a grammar that can't be followed, and says why.
  ClosingGrammar(const std::vector<Rule> &rules, std::shared_ptr<const TokenTexts> texts);

  int num_places() const { return static_cast<int>(places_.size()); }
  int num_rules() const { return static_cast<int>(first_.size()); }
  const Place &place(int at) const { return places_[static_cast<std::size_t>(at)]; }
  const std::bitset<256> &set(int number) const { return sets_[static_cast<std::size_t>(number)]; }
  const std::vector<int> &alternatives(int rule) const { return first_[static_cast<std::size_t>(rule)]; }
  const TokenTexts &texts() const { return *texts_; }

  // Fewest tokens from a place to the end of its alternative. Before a rule, `count` of its times are done.
  int cost(int at) const { return cost_[static_cast<std::size_t>(at)]; }
  int cost(int at, int count) const;
  int rule_cost(int rule) const { return rule_cost_[static_cast<std::size_t>(rule)]; }

  // The text of that, appended to `text`, and the tokens that the cost counts, to `tokens`.
  void spell(int at, int count, std::string &text, std::vector<std::int32_t> &tokens) const;

  std::size_t num_bytes() const;

  static int sum(int a, int b) { return a >= kNever || b >= kNever || a + b >= kNever ? kNever : a + b; }
  static int times(int count, int cost);

 private:
  // Text that is spelled by itself: of a place before a byte, the bytes up to `end` and their tokens.
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
  std::vector<char> bytes_;              // of each set the byte that is written, where one has a token
  std::vector<bool> has_byte_;           // of each set
  std::vector<std::vector<int>> first_;  // of each rule the first places of its alternatives
  std::vector<int> cost_, rule_cost_, best_;
  std::vector<Piece> pieces_;  // of each place before a byte
  std::shared_ptr<const TokenTexts> texts_;
};

}  // namespace weft
