// A matcher that is owned, for C++.
#pragma once

#include <weft/matcher.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace weft {

// A matcher that goes with it, unless it is given on.
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

// Owns one matcher; destroyed with its last reference. A matcher is attached to at most one slot.
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
  // The optional ones: a negative temperature, and no tokens, where there is none.
  float temperature() { return matcher_.ops->temperature ? matcher_.ops->temperature(matcher_.self) : -1.0f; }
  int edit(int *drop, std::int32_t *append, int capacity) {
    return matcher_.ops->edit ? matcher_.ops->edit(matcher_.self, drop, append, capacity) : *drop = 0;
  }
  const weft_matcher_ops *ops() const { return matcher_.ops; }
  const weft_matcher &native() const { return matcher_; }

  int slot = -1;              // where the host has attached it; only `push` and the state's end touch it
  const std::int64_t serial;  // no other matcher of the process has it; 1, 2, ...
  // Tokens that it has taken for good from its start; while it has a slot, as of when it got it. Counted by who moves
  // it: the state when it leaves its slot, and its Python methods.
  std::int64_t position = 0;
  bool has_edit = false;  // of the last token that Python's accept took

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
