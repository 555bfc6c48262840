// Owners of matchers in C++.
#pragma once

#include <weft/matcher.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace weft {

// A unique owner of a matcher, which destroys it unless it is released.
class OwnedMatcher {
 public:
  explicit OwnedMatcher(weft_matcher matcher) : matcher_(matcher) {}
  OwnedMatcher(OwnedMatcher &&other) noexcept : matcher_(other.release()) {}
  OwnedMatcher &operator=(OwnedMatcher &&) = delete;
  ~OwnedMatcher() {
    if (matcher_.self) matcher_.ops->destroy(matcher_.self);
  }
  explicit operator bool() const { return matcher_.self != nullptr; }
  const weft_matcher &native() const { return matcher_; }
  weft_matcher release() { return std::exchange(matcher_, weft_matcher{matcher_.ops, nullptr}); }

 private:
  weft_matcher matcher_;
};

// A shared matcher (see MatcherRef), attached to at most one slot.
class MatcherHandle {
 public:
  explicit MatcherHandle(weft_matcher matcher) : serial(next_serial()), matcher_(matcher) {}
  MatcherHandle(const MatcherHandle &) = delete;
  MatcherHandle &operator=(const MatcherHandle &) = delete;
  ~MatcherHandle() { matcher_.ops->destroy(matcher_.self); }

  int accept(std::int32_t token) { return matcher_.ops->accept(matcher_.self, token); }
  int validate(const std::int32_t *tokens, int count) { return matcher_.ops->validate(matcher_.self, tokens, count); }
  int fill(std::int32_t *row, int words) { return matcher_.ops->fill(matcher_.self, row, words); }
  int rollback(int count) { return matcher_.ops->rollback(matcher_.self, count); }
  void *fork() { return matcher_.ops->fork(matcher_.self); }
  int reset() { return matcher_.ops->reset(matcher_.self); }
  int forced(std::int32_t *tokens, int capacity) { return matcher_.ops->forced(matcher_.self, tokens, capacity); }
  bool is_terminated() { return matcher_.ops->is_terminated(matcher_.self) > 0; }
  const char *error() { return matcher_.ops->error(matcher_.self); }
  // Optional functions. A matcher without them has a negative temperature and an empty edit.
  float temperature() { return matcher_.ops->temperature ? matcher_.ops->temperature(matcher_.self) : -1.0f; }
  int edit(int *drop, std::int32_t *append, int capacity) {
    return matcher_.ops->edit ? matcher_.ops->edit(matcher_.self, drop, append, capacity) : *drop = 0;
  }
  const weft_matcher_ops *ops() const { return matcher_.ops; }
  const weft_matcher &native() const { return matcher_; }

  int slot = -1;              // the slot that the host attached it to, -1: none; only GuidedState's host side writes it
  const std::int64_t serial;  // unique in the process: 1, 2, ...
  // The number of committed tokens since the matcher's start. While it is attached to a slot, this is the number at the
  // time of attaching; the state updates it when the matcher is detached.
  std::int64_t position = 0;
  // The reason why a detached matcher could not be rolled back to the committed text; empty if it could. It has then
  // taken drafts that are not in the text, and must not be attached again before a `reset`.
  std::string misplaced;
  bool has_edit = false;  // whether the last `accept` from Python asked for an edit
  bool may_wait = false;  // whether it, or a matcher inside it, is written in Python

 private:
  static std::int64_t next_serial() {
    static std::atomic<std::int64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  weft_matcher matcher_;
};
using MatcherRef = std::shared_ptr<MatcherHandle>;

inline MatcherRef held(OwnedMatcher matcher) {
  auto ref = std::make_shared<MatcherHandle>(matcher.native());
  matcher.release();
  return ref;
}

}  // namespace weft
