// A fake matcher behind the C interface, for tests of the code that owns and calls matchers.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "matcher/handle.h"
#include "support/thread_time.h"

namespace weft::test {

constexpr int kVocab = 70, kEnd = 0;

inline std::atomic<int> live{0};
inline std::atomic<bool> destroyed_in_callback{false};
inline thread_local bool in_callback = false;

// Accepts token t after n tokens if (t + 3 * n + seed) % 5 < 2, and the end token after `length` tokens.
struct Fake {
  enum Call { kNone, kAccept, kValidate, kFill, kRollback, kForced };
  int seed = 0, length = 12, fails_at = -1;
  std::chrono::microseconds delay{0};
  Call slow = kNone;  // this call burns `work_ns` of processor time each time
  std::int64_t work_ns = 0;
  std::vector<std::int32_t> taken;
  void spend(Call call) const {
    if (call != slow) return;
    const std::int64_t end = thread_cpu_ns() + work_ns;
    while (thread_cpu_ns() < end) continue;
  }
  bool ended() const { return !taken.empty() && taken.back() == kEnd; }
  bool allows(std::int32_t token) const {
    const int n = static_cast<int>(taken.size());
    if (ended()) return false;
    if (n >= length) return token == kEnd;
    return token > 0 && token < kVocab && (token + 3 * n + seed) % 5 < 2;
  }
};
inline Fake fake_of(int seed, int length = 12, int fails_at = -1) {
  Fake matcher;
  matcher.seed = seed;
  matcher.length = length;
  matcher.fails_at = fails_at;
  return matcher;
}
inline Fake &fake(void *self) { return *static_cast<Fake *>(self); }

inline int fake_accept(void *self, std::int32_t token) {
  fake(self).spend(Fake::kAccept);
  if (!fake(self).allows(token)) return 0;
  fake(self).taken.push_back(token);
  return 1;
}
inline int fake_rollback(void *self, int count) {
  fake(self).spend(Fake::kRollback);
  if (count > static_cast<int>(fake(self).taken.size())) return -1;
  fake(self).taken.resize(fake(self).taken.size() - count);
  return 0;
}
inline int fake_validate(void *self, const std::int32_t *tokens, int count) {
  fake(self).spend(Fake::kValidate);
  int taken = 0;
  while (taken < count && fake_accept(self, tokens[taken]) == 1) ++taken;
  fake_rollback(self, taken);
  return taken;
}
inline int fake_fill(void *self, std::int32_t *row, int words) {
  const Fake &matcher = fake(self);
  if (static_cast<int>(matcher.taken.size()) == matcher.fails_at) return -1;
  matcher.spend(Fake::kFill);
  if (matcher.delay.count()) std::this_thread::sleep_for(matcher.delay);
  std::fill(row, row + words, 0);
  for (std::int32_t token = 0; token < kVocab; ++token)
    if (matcher.allows(token)) row[token / 32] |= static_cast<std::int32_t>(1u << (token % 32));
  return 1;
}
inline void *fake_fork(void *) { return nullptr; }
inline int fake_reset(void *) { return -1; }
// Drafts the lowest allowed token at each position, up to half of `capacity` tokens.
inline int fake_forced(void *self, std::int32_t *tokens, int capacity) {
  fake(self).spend(Fake::kForced);
  int count = 0;
  for (std::int32_t token = 1; count < capacity / 2 && token < kVocab; ++token) {
    if (fake_accept(self, token) != 1) continue;
    tokens[count++] = token;
    token = 0;
  }
  fake_rollback(self, count);
  return count;
}
inline int fake_is_terminated(void *self) { return fake(self).ended(); }
inline const char *fake_error(void *) { return "planted"; }
inline void fake_destroy(void *self) {
  if (in_callback) destroyed_in_callback = true;
  delete &fake(self);
  --live;
}
constexpr weft_matcher_ops kOps = {WEFT_MATCHER_ABI, fake_accept, fake_validate, fake_fill,          fake_rollback,
                                   fake_fork,        fake_reset,  fake_forced,   fake_is_terminated, fake_error,
                                   fake_destroy,     nullptr,     nullptr};

inline MatcherRef make(Fake settings) {
  ++live;
  return std::make_shared<MatcherHandle>(weft_matcher{&kOps, new Fake(std::move(settings))});
}

}  // namespace weft::test
