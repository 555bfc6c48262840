// Closing in time: with a limit on tokens, a matcher always reaches an end. Runs over random grammars with so few texts
// that the test can list them. Sanitizers check the bounds.
#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "grammar/closing/chart.h"
#include "grammar/closing/matcher.h"

namespace {

using weft::ClosingChart;
using weft::ClosingGrammar;
using Random = std::mt19937;
using Texts = std::set<std::string>;

constexpr int kEnd = 0;
const std::vector<std::string> kTokens = {"", "a", "b", "c", "ab", "ca", "bb", "abc", "aab", "cab", "bc"};

int drawn(Random &random, int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); }

// A rule refers to later rules only, so that every text is finite.
std::vector<ClosingGrammar::Rule> random_rules(Random &random) {
  const int count = drawn(random, 1, 5);
  std::vector<ClosingGrammar::Rule> rules(static_cast<std::size_t>(count));
  for (int rule = 0; rule < count; ++rule)
    for (int i = drawn(random, 1, 3); i-- > 0;) {
      ClosingGrammar::Alternative alternative;
      for (int j = drawn(random, 0, 3); j-- > 0;) {
        ClosingGrammar::Element element;
        if (rule + 1 < count && drawn(random, 0, 1)) {
          element.rule = drawn(random, rule + 1, count - 1);
          element.min_times = drawn(random, 0, 2);
          element.max_times = element.min_times + drawn(random, element.min_times == 0, 2);
        } else if (drawn(random, 0, 1)) {
          for (int k = drawn(random, 1, 3); k-- > 0;) element.bytes += static_cast<char>('a' + drawn(random, 0, 2));
        } else {
          element.set['a'] = true;
          element.set[static_cast<std::size_t>('a' + drawn(random, 1, 2))] = true;
        }
        alternative.push_back(element);
      }
      rules[static_cast<std::size_t>(rule)].push_back(alternative);
    }
  return rules;
}

// Returns all concatenations of a text of `left` and one of `right`. Throws std::length_error above 3000.
Texts joined(const Texts &left, const Texts &right) {
  Texts all;
  for (const std::string &a : left)
    for (const std::string &b : right)
      if (all.insert(a + b).second && all.size() > 3000) throw std::length_error("too many texts");
  return all;
}
// Lists all texts of each rule. Throws std::length_error if there are too many.
std::vector<Texts> texts_of(const std::vector<ClosingGrammar::Rule> &rules) {
  std::vector<Texts> texts(rules.size());
  for (std::size_t rule = rules.size(); rule-- > 0;)
    for (const auto &alternative : rules[rule]) {
      Texts all{""};
      for (const auto &element : alternative) {
        Texts one;
        if (element.rule >= 0) {
          Texts power{""};
          for (int times = 0; times <= element.max_times; ++times) {
            if (times >= element.min_times) one.insert(power.begin(), power.end());
            power = joined(power, texts[static_cast<std::size_t>(element.rule)]);
          }
        } else if (!element.bytes.empty()) {
          one.insert(element.bytes);
        } else {
          for (int byte = 0; byte < 256; ++byte)
            if (element.set[static_cast<std::size_t>(byte)]) one.insert(std::string(1, static_cast<char>(byte)));
        }
        all = joined(all, one);
      }
      texts[rule].insert(all.begin(), all.end());
    }
  return texts;
}

// A matcher that accepts tokens as long as they spell a prefix of a listed text, and the end token after a whole one.
struct Lister {
  std::shared_ptr<const Texts> texts;
  std::vector<std::int32_t> taken;
  std::string written() const {
    std::string all;
    for (std::int32_t token : taken) all += kTokens[static_cast<std::size_t>(token)];
    return all;
  }
  bool ended() const { return !taken.empty() && taken.back() == kEnd; }
  bool allows(std::int32_t token) const {
    if (ended() || token < 0 || token >= static_cast<int>(kTokens.size())) return false;
    if (token == kEnd) return texts->count(written()) > 0;
    const std::string beginning = written() + kTokens[static_cast<std::size_t>(token)];
    const auto found = texts->lower_bound(beginning);
    return found != texts->end() && found->compare(0, beginning.size(), beginning) == 0;
  }
};
Lister &lister(void *self) { return *static_cast<Lister *>(self); }
int list_accept(void *self, std::int32_t token) {
  if (!lister(self).allows(token)) return 0;
  lister(self).taken.push_back(token);
  return 1;
}
int list_rollback(void *self, int count) {
  lister(self).taken.resize(lister(self).taken.size() - static_cast<std::size_t>(count));
  return 0;
}
int list_validate(void *self, const std::int32_t *tokens, int count) {
  int taken = 0;
  while (taken < count && list_accept(self, tokens[taken]) == 1) ++taken;
  list_rollback(self, taken);
  return taken;
}
int list_fill(void *self, std::int32_t *row, int) {
  row[0] = 0;
  for (int token = 0; token < static_cast<int>(kTokens.size()); ++token)
    if (lister(self).allows(token)) row[0] |= 1 << token;
  return 1;
}
void *list_fork(void *self) { return new Lister(lister(self)); }
int list_reset(void *self) { return lister(self).taken.clear(), 0; }
int list_forced(void *, std::int32_t *, int) { return 0; }
int list_is_terminated(void *self) { return lister(self).ended(); }
const char *list_error(void *) { return "planted"; }
void list_destroy(void *self) { delete &lister(self); }
constexpr weft_matcher_ops kOps = {WEFT_MATCHER_ABI, list_accept, list_validate, list_fill,          list_rollback,
                                   list_fork,        list_reset,  list_forced,   list_is_terminated, list_error,
                                   list_destroy,     nullptr,     nullptr};

// Checks that a token lengthens the shortest end by at most the token's growth, in tokens.
void check_growth(const weft::ClosingTables &tables, ClosingChart &chart, const std::string &text) {
  ClosingChart::StateRef before, after;
  CHECK(chart.advance(*chart.start(), text, before) == ClosingChart::Outcome::kTaken);
  for (std::size_t token = 1; token < kTokens.size(); ++token)
    if (chart.advance(*chart.start(), text + kTokens[token], after) == ClosingChart::Outcome::kTaken)
      CHECK(after->cheapest <= before->dearest + tables.growth->growth(static_cast<std::int32_t>(token)));
}

void check_costs(const weft::ClosingTables &tables, const Texts &texts, Random &random) {
  ClosingChart chart(tables.grammar);
  for (int i = 0; i < 5; ++i) {
    const std::string &text = *std::next(texts.begin(), drawn(random, 0, static_cast<int>(texts.size()) - 1));
    const std::string beginning =
        text.substr(0, static_cast<std::size_t>(drawn(random, 0, static_cast<int>(text.size()))));
    ClosingChart::StateRef state;
    CHECK(chart.advance(*chart.start(), beginning, state) == ClosingChart::Outcome::kTaken);
    std::string end;
    std::vector<std::int32_t> tokens;
    chart.spell(*state, end, tokens);
    CHECK(tokens.size() == state->cheapest);
    CHECK(texts.count(beginning + end) == 1);
    CHECK(state->cheapest <= state->dearest);
    CHECK(chart.advance(*chart.start(), beginning + "x", state) == ClosingChart::Outcome::kRefused);
    check_growth(tables, chart, beginning);
  }
}

// Walks at random, with rollbacks and forks, and checks that the text ends within `room` tokens.
void walk(weft_matcher matcher, int room, Random &random) {
  const weft_matcher_ops &ops = *matcher.ops;
  std::vector<std::int32_t> taken;
  while (!ops.is_terminated(matcher.self)) {
    std::int32_t row = 0;
    CHECK(ops.fill(matcher.self, &row, 1) >= 0);
    std::vector<std::int32_t> allowed;
    for (std::int32_t token = 0; token < static_cast<int>(kTokens.size()); ++token) {
      const bool is_set = static_cast<std::uint32_t>(row) >> token & 1u;
      CHECK(ops.validate(matcher.self, &token, 1) == is_set);
      if (is_set) allowed.push_back(token);
    }
    CHECK(!allowed.empty());
    if (allowed.empty()) break;
    const std::int32_t token =
        allowed[static_cast<std::size_t>(drawn(random, 0, static_cast<int>(allowed.size()) - 1))];
    CHECK(ops.accept(matcher.self, token) == 1);
    taken.push_back(token);
    CHECK(static_cast<int>(taken.size()) <= room);
    if (drawn(random, 0, 4) == 0) {
      const int back = drawn(random, 1, static_cast<int>(taken.size()));
      CHECK(ops.rollback(matcher.self, back) == 0);
      if (drawn(random, 0, 1)) {
        void *fork = ops.fork(matcher.self);
        ops.destroy(matcher.self);
        matcher.self = fork;
      }
      taken.resize(taken.size() - static_cast<std::size_t>(back));
    }
  }
  CHECK(ops.rollback(matcher.self, static_cast<int>(taken.size()) + 1) == -1);
  CHECK(ops.reset(matcher.self) == 0);
  ops.destroy(matcher.self);
}

}  // namespace

TEST_CASE("random grammars end in time") {
  Random random(17);
  const auto vocabulary = std::make_shared<const weft::TokenTexts>(kTokens);
  int seen = 0;
  while (seen < 300) {
    const auto rules = random_rules(random);
    std::shared_ptr<const Texts> texts;
    try {
      texts = std::make_shared<const Texts>(texts_of(rules)[0]);
    } catch (const std::length_error &) {
      continue;
    }
    ++seen;
    weft::ClosingTables tables;
    tables.grammar = std::make_shared<const ClosingGrammar>(rules, vocabulary);
    tables.growth = std::make_shared<const weft::ClosingGrowth>(*tables.grammar, static_cast<int>(kTokens.size()),
                                                                std::vector<std::int32_t>{kEnd});
    check_costs(tables, *texts, random);
    std::string error;
    int needed = 0;
    CHECK(!weft::closing_matcher({&kOps, new Lister{texts, {}}}, tables, 0, error, needed).ops);
    CHECK(needed >= 1);
    for (int extra = 0; extra < 4; ++extra) {
      const weft_matcher matcher =
          weft::closing_matcher({&kOps, new Lister{texts, {}}}, tables, needed + extra, error, needed);
      CHECK(matcher.ops);
      walk(matcher, needed + extra, random);
    }
  }
}

// The example in grammar/closing/growth.h: root ::= "a" item{1,2}; item ::= "b" | "cd".
TEST_CASE("the costs and growths of a small grammar") {
  const std::vector<std::string> tokens = {"", "a", "b", "c", "d", "cd", "bc"};
  ClosingGrammar::Element a, items, b, cd;
  a.bytes = "a";
  items.rule = 1;
  items.min_times = 1;
  items.max_times = 2;
  b.bytes = "b";
  cd.bytes = "cd";
  const auto grammar = std::make_shared<const ClosingGrammar>(
      std::vector<ClosingGrammar::Rule>{{{a, items}}, {{b}, {cd}}}, std::make_shared<const weft::TokenTexts>(tokens));
  std::vector<int> costs;
  for (int place = 0; place < grammar->num_places(); ++place) costs.push_back(grammar->cost(place));
  CHECK(costs == std::vector<int>{2, 1, 0, 1, 0, 1, 1, 0});
  CHECK(grammar->rule_cost(1) == 1);

  ClosingChart chart(grammar);
  const auto cost = [&](const char *text) {
    ClosingChart::StateRef state;
    REQUIRE(chart.advance(*chart.start(), text, state) == ClosingChart::Outcome::kTaken);
    CHECK(state->cheapest == state->dearest);
    return state->dearest;
  };
  CHECK(cost("") == 2);
  CHECK(cost("a") == 1);
  CHECK(cost("ab") == 0);
  CHECK(cost("abb") == 0);
  CHECK(cost("ac") == 1);
  CHECK(cost("acd") == 0);
  CHECK(cost("abc") == 1);
  CHECK(cost("abcd") == 0);

  const weft::ClosingGrowth growth(*grammar, static_cast<int>(tokens.size()), {kEnd});
  std::vector<int> growths;
  for (std::int32_t token = 1; token < static_cast<std::int32_t>(tokens.size()); ++token)
    growths.push_back(growth.growth(token));
  CHECK(growths == std::vector<int>{-1, 0, 1, -1, 0, 1});
  CHECK(growth.greatest() == 1);
}

TEST_CASE("grammars that can not be followed") {
  const auto vocabulary = std::make_shared<const weft::TokenTexts>(kTokens);
  const auto refuses = [&](const std::vector<ClosingGrammar::Rule> &rules) {
    try {
      ClosingGrammar grammar(rules, vocabulary);
    } catch (const std::invalid_argument &) {
      return true;
    }
    return false;
  };
  ClosingGrammar::Element itself, byte, maybe;
  itself.rule = maybe.rule = 0;
  maybe.min_times = 0;
  byte.bytes = "a";
  CHECK(refuses({}));
  CHECK(refuses({{{itself, byte}, {byte}}}));
  CHECK(refuses({{{maybe, byte}}}));
  CHECK(!refuses({{{itself}, {byte}}}));
  CHECK(!refuses({{{byte, maybe}}}));
  itself.rule = 7;
  CHECK(refuses({{{itself}}}));
}
