#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "grammar/after/rules.h"
#include "matcher/no_throw.h"

namespace weft {
namespace {

// After the trigger, the number of the text's tokens minus the number that the guide received; both grow alike. kNone
// before the trigger. The thread that uses the matcher writes it, and any thread may read it.
struct Handover {
  static constexpr std::int64_t kNone = -1;
  std::atomic<std::int64_t> at{kNone};
  Handover() = default;
  Handover(const Handover &other) : at(other.at.load(std::memory_order_relaxed)) {}
};

struct AfterMatcher {
  std::shared_ptr<const AfterRules> rules;
  MatcherRef guide;
  int max_free_tokens;

  int state = 0;            // of the free text (see AfterRules)
  std::vector<int> before;  // the state before each free token, including the one in which the trigger ends
  bool is_within = false;   // the guide has taken over
  int num_beginning = 0;    // tokens that the guide accepted in `begin`
  int num_taken = 0;        // tokens that the guide accepted after that
  std::string error;
  Handover handover;

  bool is_forced() const { return max_free_tokens >= 0 && static_cast<int>(before.size()) >= max_free_tokens; }
  int fail() { return error = guide->error(), -1; }
};

// Lets the guide accept `tokens`, which spell the bytes that follow the trigger inside its last token. Returns 1; 0
// if the guide refuses them or wants to edit the text; -1 on failure. Only with 1 does the guide's state change.
//
// An edit counts as a refusal because it can't be made. It may drop the guide's last token, but the text has no such
// token, only the one that also ends the trigger. AfterRules::settle decides alike, so the masks allow no such token.
int begin(AfterMatcher &matcher, const std::vector<std::int32_t> &tokens) {
  int taken = 0, outcome = 1;
  for (std::int32_t token : tokens) {
    if ((outcome = matcher.guide->accept(token)) != 1) break;
    ++taken;
  }
  if (outcome == 1) return matcher.num_beginning = taken, 1;
  if (outcome < 0) matcher.fail();
  const int given = taken + (outcome > 1);
  if (given > 0 && matcher.guide->rollback(given) != 0) return matcher.fail();
  return std::min(outcome, 0);
}

int after_accept(AfterMatcher &matcher, std::int32_t token) {
  if (matcher.is_within) {
    const int outcome = matcher.guide->accept(token);
    if (outcome < 0) return matcher.fail();
    matcher.num_taken += outcome > 0;
    return outcome;
  }
  const AfterRules::Step step = matcher.rules->step(matcher.state, token, matcher.is_forced());
  if (step.state < 0) return 0;
  matcher.before.push_back(matcher.state);
  if (step.beginning) {
    if (const int outcome = begin(matcher, *step.beginning); outcome != 1) return matcher.before.pop_back(), outcome;
    matcher.is_within = true;
    matcher.handover.at = static_cast<std::int64_t>(matcher.before.size()) - matcher.num_beginning;
  }
  matcher.state = step.state;
  return 1;
}

int after_rollback(AfterMatcher &matcher, int count) {
  if (count < 0) return matcher.error = "can't roll back a negative number of tokens", -1;
  const int there = matcher.num_taken + static_cast<int>(matcher.before.size());
  if (count > there)
    return matcher.error = "rollback of " + std::to_string(count) + " tokens, of " + std::to_string(there), -1;
  const int of_guide = std::min(count, matcher.num_taken), of_text = count - of_guide;
  const bool leaves = matcher.is_within && of_text > 0;
  const int given_back = of_guide + (leaves ? matcher.num_beginning : 0);
  if (given_back > 0 && matcher.guide->rollback(given_back) != 0) return matcher.fail();
  matcher.num_taken -= of_guide;
  if (leaves) matcher.is_within = false, matcher.num_beginning = 0, matcher.handover.at = Handover::kNone;
  if (of_text > 0) {
    matcher.state = matcher.before[matcher.before.size() - static_cast<std::size_t>(of_text)];
    matcher.before.resize(matcher.before.size() - static_cast<std::size_t>(of_text));
  }
  return 0;
}

int after_is_terminated(AfterMatcher &matcher) { return matcher.is_within && matcher.guide->is_terminated(); }

int after_validate(AfterMatcher &matcher, const std::int32_t *tokens, int count) {
  int taken = 0, outcome = 1;
  while (taken < count && outcome == 1 && !matcher.is_within)
    if ((outcome = guarded<after_accept>(&matcher, tokens[taken])) == 1) ++taken;
  int within = 0;
  if (outcome == 1 && taken < count && (within = matcher.guide->validate(tokens + taken, count - taken)) < 0)
    outcome = matcher.fail();
  // The rollback must not replace the error.
  const std::string error = matcher.error;
  if (taken > 0 && after_rollback(matcher, taken) != 0) return -1;
  matcher.error = error;
  return outcome < 0 ? -1 : taken + within;
}

int after_fill(AfterMatcher &matcher, std::int32_t *row, int words) {
  if (matcher.is_within) {
    const int outcome = matcher.guide->fill(row, words);
    return outcome < 0 ? matcher.fail() : outcome;
  }
  const int needed = matcher.rules->words();
  if (words < needed) return matcher.error = "the mask row is shorter than the vocabulary", -1;
  matcher.rules->fill(matcher.state, matcher.is_forced(), row);
  std::memset(row + needed, 0, static_cast<std::size_t>(words - needed) * sizeof *row);
  return 1;  // some tokens are blocked: free text never allows an end token
}

extern const weft_matcher_ops kOps;

void *after_fork(AfterMatcher &matcher) {
  OwnedMatcher guide({matcher.guide->ops(), matcher.guide->fork()});
  if (!guide) return matcher.fail(), nullptr;
  auto copy = std::make_unique<AfterMatcher>(matcher);
  copy->guide = held(std::move(guide));
  return copy.release();
}

int after_reset(AfterMatcher &matcher) {
  if (matcher.guide->reset() != 0) return matcher.fail();
  matcher.state = matcher.num_beginning = matcher.num_taken = 0;
  matcher.before.clear();
  matcher.is_within = false;
  matcher.handover.at = Handover::kNone;
  return 0;
}

int after_forced(AfterMatcher &matcher, std::int32_t *tokens, int capacity) {
  if (matcher.is_within) {
    const int count = matcher.guide->forced(tokens, capacity);
    return count < 0 ? matcher.fail() : count;
  }
  if (!matcher.is_forced() || capacity < 1) return 0;
  if (matcher.rules->token() >= 0) return tokens[0] = matcher.rules->token(), 1;
  return forced_tokens({&kOps, &matcher}, matcher.rules->texts(), matcher.rules->missing(matcher.state), tokens,
                       capacity);
}

const char *after_error(AfterMatcher &matcher) { return matcher.error.c_str(); }

void after_destroy(AfterMatcher &matcher) { delete &matcher; }

float after_temperature(AfterMatcher &matcher) { return matcher.is_within ? matcher.guide->temperature() : -1.0f; }

int after_edit(AfterMatcher &matcher, int *drop, std::int32_t *append, int capacity) {
  const int count = matcher.guide->edit(drop, append, capacity);
  return count < 0 ? matcher.fail() : count;
}

const weft_matcher_ops kOps = {WEFT_MATCHER_ABI,     guarded<after_accept>,   guarded<after_validate>,
                               guarded<after_fill>,  guarded<after_rollback>, guarded<after_fork>,
                               guarded<after_reset>, guarded<after_forced>,   guarded<after_is_terminated>,
                               guarded<after_error>, guarded<after_destroy>,  guarded<after_temperature>,
                               guarded<after_edit>};

}  // namespace

weft_matcher after_matcher(std::shared_ptr<const AfterRules> rules, MatcherRef guide, int max_free_tokens) {
  return {&kOps, new AfterMatcher{std::move(rules), std::move(guide), max_free_tokens, 0, {}, false, 0, 0, {}, {}}};
}

std::optional<weft_matcher> guide_after(const weft_matcher &matcher, std::int64_t &num_tokens) {
  if (matcher.ops != &kOps) return std::nullopt;
  const auto &after = *static_cast<const AfterMatcher *>(matcher.self);
  const std::int64_t at = after.handover.at.load(std::memory_order_relaxed);
  num_tokens = at == Handover::kNone ? 0 : std::max<std::int64_t>(num_tokens - at, 0);
  return after.guide->native();
}

}  // namespace weft
