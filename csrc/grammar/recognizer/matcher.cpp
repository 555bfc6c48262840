#include "grammar/recognizer/matcher.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "matcher/no_throw.h"

namespace weft {
namespace {

struct RecognizerMatcher {
  std::shared_ptr<const RecognizerGuide> guide;
  std::unique_ptr<Recognizing> recognizer;
  std::vector<std::int32_t> taken;
  bool has_ended = false;
  bool is_lost = false;  // popping bytes or pushing them again failed; the state is unknown
  std::string error;

  bool is_end(std::int32_t token) const {
    return std::find(guide->end_tokens.begin(), guide->end_tokens.end(), token) != guide->end_tokens.end();
  }
  int fail() { return error = recognizer->error(), -1; }
  int lose() { return is_lost = true, fail(); }

  // Pushes bytes up to the first one that is not allowed. Returns the number pushed, or -1 on failure.
  int push(std::string_view bytes) {
    int count = 0;
    for (const char byte : bytes) {
      const int outcome = recognizer->try_push_byte(static_cast<std::uint8_t>(byte));
      if (outcome < 0) return pop(count) < 0 ? -1 : fail();
      if (outcome == 0) break;
      ++count;
    }
    return count;
  }
  int pop(int count) { return count > 0 && recognizer->pop_bytes(count) < 0 ? lose() : 0; }

  // Pushes all bytes of a token or none. Returns 1 if it pushed them, 0 if the token is refused, -1 on failure.
  int push_token(std::int32_t token) {
    const std::string_view text = guide->texts->text(token);
    if (text.empty()) return 0;
    const int count = push(text);
    if (count == static_cast<int>(text.size())) return 1;
    return count < 0 || pop(count) < 0 ? -1 : 0;
  }

  int take(std::int32_t token) {
    if (has_ended || token < 0 || token >= guide->vocab_size) return 0;
    int outcome;
    if (is_end(token)) {
      if ((outcome = recognizer->special_allowed(token)) < 0) return fail();
      has_ended = outcome == 1;
    } else if ((outcome = push_token(token)) == 1 && recognizer->collapse() < 0) {
      return lose();
    }
    if (outcome == 1) taken.push_back(token);
    return outcome;
  }

  // Accepts `tokens` again, from the start of the text. Returns 0, or -1 on failure.
  int repeat(const std::vector<std::int32_t> &tokens) {
    for (std::int32_t token : tokens) {
      const int outcome = take(token);
      if (outcome == 1) continue;
      is_lost = true;
      if (outcome == 0)
        error = "the recogniser refused token " + std::to_string(token) +
                " when the text was read again, which it had allowed; it has to allow the same bytes each time";
      return -1;
    }
    return 0;
  }
};

// Runs `body` between `enter` and `leave`. If a body that `pushes` bytes throws, an unknown number of bytes stays
// pushed, so the matcher can't be used any more (`is_lost`).
template <class Body>
int with(RecognizerMatcher &matcher, Body body, bool pushes = true) {
  if (matcher.is_lost) return -1;
  if (matcher.recognizer->enter() != 0) return matcher.fail();
  // `leave` is called on the recogniser that was entered; a replay may have replaced it.
  struct Leave {
    Recognizing *entered;
    ~Leave() { entered->leave(); }
  };
  std::unique_ptr<Recognizing> replaced;
  Leave leave{matcher.recognizer.get()};
  try {
    return body(replaced);
  } catch (...) {
    matcher.is_lost = pushes;
    throw;
  }
}

int rec_accept(RecognizerMatcher &matcher, std::int32_t token) {
  return with(matcher, [&](auto &) { return matcher.take(token); });
}

// Replaces the recogniser by a new one, which accepts the first `keep` tokens again. The old one is moved to
// `replaced`, because its `leave` must still be called.
int replay(RecognizerMatcher &matcher, std::size_t keep, std::unique_ptr<Recognizing> &replaced) {
  std::unique_ptr<Recognizing> fresh = matcher.guide->make(matcher.error);
  if (!fresh) return -1;
  std::vector<std::int32_t> tokens(matcher.taken.begin(), matcher.taken.begin() + static_cast<std::ptrdiff_t>(keep));
  if (fresh->enter() != 0) return matcher.error = fresh->error(), -1;
  replaced = std::exchange(matcher.recognizer, std::move(fresh));
  matcher.taken.clear();
  matcher.has_ended = false;
  const int outcome = matcher.repeat(tokens);
  matcher.recognizer->leave();
  return outcome;
}

int take_back(RecognizerMatcher &matcher, int count, std::unique_ptr<Recognizing> &replaced) {
  const auto there = static_cast<int>(matcher.taken.size());
  if (count < 0) return matcher.error = "can't roll back a negative number of tokens", -1;
  if (count > there)
    return matcher.error = "rollback of " + std::to_string(count) + " tokens, of " + std::to_string(there), -1;
  const auto keep = static_cast<std::size_t>(there - count);
  int num_bytes = 0;
  for (std::size_t i = keep; i < matcher.taken.size(); ++i)
    if (!matcher.is_end(matcher.taken[i]))
      num_bytes += static_cast<int>(matcher.guide->texts->text(matcher.taken[i]).size());
  if (num_bytes > 0 && matcher.recognizer->collapses()) return replay(matcher, keep, replaced);
  if (matcher.pop(num_bytes) < 0) return -1;
  matcher.taken.resize(keep);
  if (count > 0) matcher.has_ended = false;
  return 0;
}

int rec_rollback(RecognizerMatcher &matcher, int count) {
  return with(matcher, [&](auto &replaced) { return take_back(matcher, count, replaced); });
}

// Pushes bytes without `collapse`, unlike `take`, so that all of them can be popped.
int rec_validate(RecognizerMatcher &matcher, const std::int32_t *tokens, int count) {
  return with(matcher, [&](auto &) {
    int taken = 0, num_bytes = 0, outcome = matcher.has_ended ? 0 : 1;
    while (taken < count && outcome == 1) {
      const std::int32_t token = tokens[taken];
      const bool is_end = matcher.is_end(token);
      if (token < 0 || token >= matcher.guide->vocab_size) break;
      if ((outcome = is_end ? matcher.recognizer->special_allowed(token) : matcher.push_token(token)) < 0)
        matcher.fail();
      if (outcome != 1) break;
      ++taken;
      if (is_end) break;
      num_bytes += static_cast<int>(matcher.guide->texts->text(token).size());
    }
    if (matcher.pop(num_bytes) < 0) return -1;
    return outcome < 0 ? -1 : taken;
  });
}

void allow(std::int32_t *row, std::int32_t token) {
  row[token / 32] = static_cast<std::int32_t>(static_cast<std::uint32_t>(row[token / 32]) | 1u << (token % 32));
}

int walk(RecognizerMatcher &matcher, std::int32_t *row) {
  const TokenTrie &trie = *matcher.guide->trie;
  std::uint32_t depth = 0;
  for (std::size_t at = 0; at < trie.nodes().size();) {
    const TokenTrie::Node &node = trie.nodes()[at];
    if (depth >= node.depth) {
      // The walk has left a subtree: pop back to this node's parent.
      if (matcher.pop(static_cast<int>(depth - node.depth + 1)) < 0) return -1;
      depth = node.depth - 1;
    }
    // A leaf has no children, so its byte is only checked and not pushed.
    const bool is_leaf = node.after == at + 1;
    const int outcome =
        is_leaf ? matcher.recognizer->byte_allowed(node.byte) : matcher.recognizer->try_push_byte(node.byte);
    if (outcome < 0) {
      matcher.fail();
      return matcher.pop(static_cast<int>(depth)), -1;
    }
    if (outcome == 0) {
      at = node.after;
      continue;
    }
    if (!is_leaf) depth = node.depth;
    for (const std::int32_t *token = trie.tokens_begin(at); token != trie.tokens_end(at); ++token) allow(row, *token);
    ++at;
  }
  if (matcher.pop(static_cast<int>(depth)) < 0) return -1;
  return matcher.recognizer->trie_finished() < 0 ? matcher.fail() : 0;
}

int rec_fill(RecognizerMatcher &matcher, std::int32_t *row, int words) {
  if (words < (matcher.guide->vocab_size + 31) / 32)
    return matcher.error = "the mask row is shorter than the vocabulary", -1;
  return with(matcher, [&](auto &) {
    std::memset(row, 0, static_cast<std::size_t>(words) * sizeof *row);
    for (std::int32_t token : matcher.guide->end_tokens) {
      const int allowed = matcher.has_ended ? 1 : matcher.recognizer->special_allowed(token);
      if (allowed < 0) return matcher.fail();
      if (allowed == 1) allow(row, token);
    }
    return !matcher.has_ended && walk(matcher, row) < 0 ? -1 : 1;
  });
}

extern const weft_matcher_ops kOps;

void *rec_fork(RecognizerMatcher &matcher) {
  RecognizerMatcher *made = nullptr;
  const auto copied = [&](auto &) {
    auto copy = std::make_unique<RecognizerMatcher>();
    copy->guide = matcher.guide;
    if ((copy->recognizer = matcher.recognizer->fork())) {
      copy->taken = matcher.taken;
      copy->has_ended = matcher.has_ended;
    } else {
      if (!(copy->recognizer = matcher.guide->make(matcher.error))) return -1;
      if (with(*copy, [&](auto &) { return copy->repeat(matcher.taken); }) < 0) return matcher.error = copy->error, -1;
    }
    made = copy.release();
    return 0;
  };
  with(matcher, copied, false);
  return made;
}

int rec_reset(RecognizerMatcher &matcher) {
  return with(matcher, [&](auto &replaced) { return replay(matcher, 0, replaced); });
}

// Pushes bytes, at most 64, as long as exactly one may follow and the text may not end. Returns 0, or -1 on failure.
int push_forced_bytes(RecognizerMatcher &matcher, std::string &text) {
  for (bool goes_on = true; goes_on && text.size() < 64;) {
    for (std::int32_t token : matcher.guide->end_tokens) {
      const int allowed = matcher.recognizer->special_allowed(token);
      if (allowed < 0) return matcher.fail();
      if (allowed == 1) goes_on = false;
    }
    int only = -1;
    for (int byte = 0; byte < 256 && goes_on; ++byte) {
      const int allowed = matcher.recognizer->byte_allowed(static_cast<std::uint8_t>(byte));
      if (allowed < 0) return matcher.fail();
      if (allowed == 0) continue;
      goes_on = only < 0;
      only = byte;
    }
    if (!goes_on || only < 0) break;
    const int outcome = matcher.recognizer->try_push_byte(static_cast<std::uint8_t>(only));
    if (outcome < 0) return matcher.fail();
    if (outcome == 0) break;
    text.push_back(static_cast<char>(only));
  }
  return 0;
}

int forced_bytes(RecognizerMatcher &matcher, std::string &text) {
  const int outcome = push_forced_bytes(matcher, text);
  return matcher.pop(static_cast<int>(text.size())) < 0 ? -1 : outcome;
}

int rec_forced(RecognizerMatcher &matcher, std::int32_t *tokens, int capacity) {
  if (matcher.has_ended || capacity < 1) return 0;
  std::string text;
  const int outcome = with(matcher, [&](auto &) { return forced_bytes(matcher, text); });
  if (outcome < 0 || text.empty()) return outcome;
  return forced_tokens({&kOps, &matcher}, *matcher.guide->texts, text, tokens, capacity);
}

int rec_is_terminated(RecognizerMatcher &matcher) { return matcher.has_ended ? 1 : 0; }

const char *rec_error(RecognizerMatcher &matcher) { return matcher.error.c_str(); }

void rec_destroy(RecognizerMatcher &matcher) { delete &matcher; }

const weft_matcher_ops kOps = {WEFT_MATCHER_ABI,
                               guarded<rec_accept>,
                               guarded<rec_validate>,
                               guarded<rec_fill>,
                               guarded<rec_rollback>,
                               guarded<rec_fork>,
                               guarded<rec_reset>,
                               guarded<rec_forced>,
                               guarded<rec_is_terminated>,
                               guarded<rec_error>,
                               guarded<rec_destroy>,
                               nullptr,
                               nullptr};

}  // namespace

weft_matcher recognizer_matcher(std::shared_ptr<const RecognizerGuide> guide, std::string &error) {
  auto matcher = std::make_unique<RecognizerMatcher>();
  matcher->guide = std::move(guide);
  if (!(matcher->recognizer = matcher->guide->make(error))) return {nullptr, nullptr};
  return {&kOps, matcher.release()};
}

}  // namespace weft
