#include "grammar/closing/matcher.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "grammar/closing/chart.h"
#include "matcher/handle.h"
#include "matcher/no_throw.h"

namespace weft {
namespace {

// If a text has more readings than this, the matcher allows only the known end's tokens, which add no readings.
constexpr std::size_t kManyReadings = 256;

// A known end of the answer: the tokens from `at` on.
struct End {
  std::shared_ptr<const std::vector<std::int32_t>> tokens;
  std::size_t at = 0;

  bool is_known() const { return tokens != nullptr; }
  int size() const { return static_cast<int>(tokens->size() - at); }
  std::int32_t next() const { return at < tokens->size() ? (*tokens)[at] : -1; }
};

// The state after a token, and a known end from there. The end is computed when it is first needed.
struct Step {
  ClosingChart::StateRef state;
  End end;
};

struct ClosingMatcher {
  const OwnedMatcher owned;
  const weft_matcher inner;  // owned.native(), for brevity
  ClosingTables tables;
  ClosingChart chart;
  int room;
  std::vector<Step> steps;  // one for the start, then one for each token taken
  std::string error;

  ClosingMatcher(OwnedMatcher given, ClosingTables tables, int room)
      : owned(std::move(given)),
        inner(owned.native()),
        tables(std::move(tables)),
        chart(this->tables.grammar),
        room(room) {
    steps.push_back({chart.start(), {}});
  }
  ClosingMatcher(const ClosingMatcher &other, OwnedMatcher given)
      : owned(std::move(given)),
        inner(owned.native()),
        tables(other.tables),
        chart(other.chart),
        room(other.room),
        steps(other.steps) {}

  const ClosingGrowth &growth() const { return *tables.growth; }
  int left() const { return room - static_cast<int>(steps.size() - 1); }

  int fail(const char *text) { return error = text, -1; }
  int fail_inner() { return error = inner.ops->error(inner.self), -1; }

  // The largest growth of a next token after which an end still fits, whatever the reading. Tokens that grow more are
  // not allowed, except the known end's next token.
  int slack() const {
    const ClosingChart::State &state = *steps.back().state;
    const bool is_lost = state.readings.size() > kManyReadings || chart.num_frames() > ClosingChart::kMaxFrames / 2;
    if (is_lost || state.dearest >= ClosingGrammar::kNever) return -ClosingGrammar::kNever;
    // 2: the next token itself, and the end token.
    return left() - 2 - state.dearest;
  }
  bool is_far(int slack) const { return growth().greatest() < ClosingGrammar::kNever && slack >= growth().greatest(); }

  // Whether the inner matcher accepts these tokens and then an end token: 1 or 0; -1 if it failed.
  int takes(std::vector<std::int32_t> tokens) {
    tokens.push_back(growth().first_end());
    const auto count = static_cast<int>(tokens.size());
    const int taken = inner.ops->validate(inner.self, tokens.data(), count);
    return taken < 0 ? fail_inner() : taken == count;
  }

  // Tokenizes the whole text as one string, as the tokenizer would.
  std::vector<std::int32_t> spell_whole(std::string_view text) const {
    const TokenTexts &texts = tables.grammar->texts();
    std::vector<std::int32_t> tokens;
    std::int32_t spelled[TokenTexts::kMaxBytes];
    while (!text.empty()) {
      const int count = texts.encode(text, spelled);
      // Cut text may be tokenized differently near the cut, so drop the last tokens and tokenize their text again with
      // what follows.
      const int kept = text.size() > TokenTexts::kMaxBytes ? std::max(count - 8, 1) : count;
      if (count < 1) return {};
      for (int i = 0; i < kept; ++i) {
        tokens.push_back(spelled[i]);
        text.remove_prefix(texts.text(spelled[i]).size());
      }
      if (kept == count && !text.empty()) return {};
    }
    return tokens;
  }

  // Ensures that the last step has a known end. Returns 0, or -1 on failure.
  int know_end() {
    Step &step = steps.back();
    if (step.end.is_known()) return 0;
    if (step.state->cheapest >= left()) return fail("no end of the answer is known that fits its length");
    std::string text;
    std::vector<std::int32_t> tokens;
    chart.spell(*step.state, text, tokens);
    std::vector<std::int32_t> whole = spell_whole(text);
    if (!whole.empty() && whole.size() <= tokens.size()) std::swap(whole, tokens);
    for (auto *spelling : {&tokens, &whole}) {
      if (spelling->empty() && !text.empty()) continue;
      const int outcome = static_cast<int>(spelling->size()) < left() ? takes(*spelling) : 0;
      if (outcome < 0) return -1;
      if (outcome == 0) continue;
      step.end = {std::make_shared<const std::vector<std::int32_t>>(std::move(*spelling)), 0};
      return 0;
    }
    return fail("the grammar does not take the end of the answer that is known");
  }

  // Whether an end still fits after `token`: 1 or 0; -1 on failure.
  int allows(std::int32_t token) {
    if (token < 0 || token >= growth().vocab_size()) return 0;
    const int slack = this->slack();
    if (growth().growth(token) <= slack || growth().is_end(token)) return 1;
    return know_end() < 0 ? -1 : steps.back().end.next() == token;
  }
};

int closing_rollback(ClosingMatcher &matcher, int count) {
  if (count < 0) return matcher.fail("can't roll back a negative number of tokens");
  if (static_cast<std::size_t>(count) >= matcher.steps.size())
    return matcher.fail("can't roll back more tokens than were taken");
  if (matcher.inner.ops->rollback(matcher.inner.self, count) != 0) return matcher.fail_inner();
  matcher.steps.resize(matcher.steps.size() - static_cast<std::size_t>(count));
  return 0;
}

int closing_accept(ClosingMatcher &matcher, std::int32_t token) {
  if (matcher.inner.ops->is_terminated(matcher.inner.self) > 0) return 0;
  const int allowed = matcher.allows(token);
  if (allowed != 1) return allowed;
  const int outcome = matcher.inner.ops->accept(matcher.inner.self, token);
  if (outcome < 0) return matcher.fail_inner();
  if (outcome == 0) return 0;
  // Rolls the inner matcher back unless the step is recorded, also after an exception.
  struct GiveBack {
    const weft_matcher &inner;
    bool is_kept;
    ~GiveBack() {
      if (!is_kept) inner.ops->rollback(inner.self, 1);
    }
  } taken{matcher.inner, false};
  const Step &before = matcher.steps.back();
  Step after{before.state, {}};
  if (!matcher.growth().is_end(token)) {
    const auto advanced =
        matcher.chart.advance(*before.state, matcher.tables.grammar->texts().text(token), after.state);
    if (advanced != ClosingChart::Outcome::kTaken)
      return matcher.fail(advanced == ClosingChart::Outcome::kTooLarge
                              ? "the grammar has too many ways to read the answer to tell how it ends"
                              : "the grammar took a token that the way to its end does not know");
    // Keep the rest of the known end if it is shorter than the chart's estimate.
    if (before.end.is_known() && before.end.next() == token &&
        (before.end.size() - 1 < after.state->cheapest || after.state->cheapest >= ClosingGrammar::kNever))
      after.end = {before.end.tokens, before.end.at + 1};
  }
  matcher.steps.push_back(std::move(after));
  taken.is_kept = true;
  return 1;
}

int closing_validate(ClosingMatcher &matcher, const std::int32_t *tokens, int count) {
  int taken = 0, outcome = 1;
  while (taken < count && (outcome = guarded<closing_accept>(&matcher, tokens[taken])) == 1) ++taken;
  const int undone = closing_rollback(matcher, taken);
  return outcome < 0 || undone < 0 ? -1 : taken;
}

int closing_fill(ClosingMatcher &matcher, std::int32_t *row, int words) {
  const int outcome = matcher.inner.ops->fill(matcher.inner.self, row, words);
  if (outcome < 0) return matcher.fail_inner();
  if (matcher.inner.ops->is_terminated(matcher.inner.self) > 0) return outcome;
  const int slack = matcher.slack();
  if (matcher.is_far(slack)) return outcome;
  if (matcher.know_end() < 0) return -1;
  const std::int32_t *mask = matcher.growth().mask(slack);
  for (int word = 0; word < matcher.growth().words(); ++word) row[word] &= mask[word];
  const std::int32_t next = matcher.steps.back().end.next();
  if (next >= 0)
    row[next / 32] = static_cast<std::int32_t>(static_cast<std::uint32_t>(row[next / 32]) | 1u << (next % 32));
  return 1;
}

void *closing_fork(ClosingMatcher &matcher) {
  OwnedMatcher forked({matcher.inner.ops, matcher.inner.ops->fork(matcher.inner.self)});
  if (!forked) return matcher.fail_inner(), nullptr;
  return new ClosingMatcher(matcher, std::move(forked));
}

int closing_reset(ClosingMatcher &matcher) {
  if (matcher.inner.ops->reset(matcher.inner.self) != 0) return matcher.fail_inner();
  matcher.steps.resize(1);
  return 0;
}

// Returns the inner matcher's forced tokens, as far as an end still fits after them.
int closing_forced(ClosingMatcher &matcher, std::int32_t *tokens, int capacity) {
  const int count = matcher.inner.ops->forced(matcher.inner.self, tokens, capacity);
  if (count < 0) return matcher.fail_inner();
  return count == 0 ? 0 : closing_validate(matcher, tokens, count);
}

int closing_is_terminated(ClosingMatcher &matcher) { return matcher.inner.ops->is_terminated(matcher.inner.self); }

const char *closing_error(ClosingMatcher &matcher) { return matcher.error.c_str(); }

void closing_destroy(ClosingMatcher &matcher) { delete &matcher; }

const weft_matcher_ops kOps = {WEFT_MATCHER_ABI,
                               guarded<closing_accept>,
                               guarded<closing_validate>,
                               guarded<closing_fill>,
                               guarded<closing_rollback>,
                               guarded<closing_fork>,
                               guarded<closing_reset>,
                               guarded<closing_forced>,
                               guarded<closing_is_terminated>,
                               guarded<closing_error>,
                               guarded<closing_destroy>,
                               nullptr,
                               nullptr};

}  // namespace

weft_matcher closing_matcher(weft_matcher inner, const ClosingTables &tables, int room, std::string &error,
                             int &needed) {
  OwnedMatcher owned(inner);
  needed = 0;
  // Start without a limit, so that the shortest end is found first and can be compared with `room`.
  auto matcher = std::make_unique<ClosingMatcher>(std::move(owned), tables, ClosingGrammar::kNever);
  if (matcher->know_end() < 0) {
    error = matcher->error;
    return {nullptr, nullptr};
  }
  needed = matcher->steps.back().end.size() + 1;
  matcher->room = room;
  if (needed > room) {
    error = "the shortest answer known has " + std::to_string(needed) + " tokens";
    return {nullptr, nullptr};
  }
  return {&kOps, matcher.release()};
}

}  // namespace weft
