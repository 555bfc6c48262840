// No exception leaves a matcher's C functions. Each allocation of a call fails once, and so does each call into a
// plug-in's matcher or recogniser, which must not throw but does here.
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "check.h"
#include "grammar/after/rules.h"
#include "grammar/closing/matcher.h"
#include "grammar/plugin/library.h"
#include "grammar/recognizer/matcher.h"
#include "matcher/handle.h"
#include "matcher/no_throw.h"
#include "support/awake.h"

namespace {

thread_local int allocations_left = -1;  // negative: no limit
thread_local bool throws = false;        // every function of Planted throws
thread_local bool throws_last = false;   // Planted throws when it is destroyed

}  // namespace

void *operator new(std::size_t size) {
  void *memory = allocations_left >= 0 && allocations_left-- == 0 ? nullptr : std::malloc(size);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void *operator new(std::size_t size, const std::nothrow_t &) noexcept { return std::malloc(size); }
__attribute__((noinline)) void operator delete(void *memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }

namespace {

using weft::ClosingGrammar;
using weft::OwnedMatcher;

const std::vector<std::string> kTokens = {"", "a", "b", "ab", "x"};
constexpr int kEnd = 0, kVocab = 5;
const auto kTexts = std::make_shared<const weft::TokenTexts>(kTokens);

// The inner object that throws. As a matcher it accepts any token until the end token; as a recogniser it accepts any
// text of a and b.
struct Planted {
  std::vector<std::int32_t> taken;
};
Planted &planted(void *self) {
  if (throws) throw 7;
  return *static_cast<Planted *>(self);
}
int accept(void *self, std::int32_t token) {
  Planted &matcher = planted(self);
  if (!matcher.taken.empty() && matcher.taken.back() == kEnd) return 0;
  return matcher.taken.push_back(token), 1;
}
int rollback(void *self, int count) {
  Planted &matcher = planted(self);
  return matcher.taken.resize(matcher.taken.size() - static_cast<std::size_t>(count)), 0;
}
int validate(void *self, const std::int32_t *, int count) { return planted(self), count; }
int fill(void *self, std::int32_t *row, int) { return planted(self), row[0] = (1 << kVocab) - 1, 1; }
void *fork(void *self) { return new Planted(planted(self)); }
int reset(void *self) { return planted(self).taken.clear(), 0; }
int forced(void *self, std::int32_t *tokens, int) { return planted(self), tokens[0] = 1, 1; }
int is_terminated(void *self) { return !planted(self).taken.empty() && planted(self).taken.back() == kEnd; }
const char *error(void *self) { return planted(self), "planted"; }
void destroy(void *self) {
  delete static_cast<Planted *>(self);
  if (throws_last) throw 7;
}
float temperature(void *self) { return planted(self), 0.5f; }
int edit(void *self, int *drop, std::int32_t *, int) { return planted(self), *drop = 0; }
constexpr weft_matcher_ops kPlanted = {WEFT_MATCHER_ABI, accept,        validate, fill,    rollback,    fork, reset,
                                       forced,           is_terminated, error,    destroy, temperature, edit};

int push_byte(void *self, std::uint8_t byte) { return planted(self).taken.push_back(byte), 0; }
int byte_allowed(void *self, std::uint8_t byte) { return planted(self), byte == 'a' || byte == 'b'; }
int special_allowed(void *self, std::int32_t) { return planted(self), 1; }
constexpr weft_recognizer_ops kRecognizer = {WEFT_RECOGNIZER_ABI,
                                             push_byte,
                                             rollback,
                                             byte_allowed,
                                             special_allowed,
                                             error,
                                             destroy,
                                             nullptr,
                                             nullptr,
                                             nullptr,
                                             fork};

OwnedMatcher plain() { return OwnedMatcher({&kPlanted, new Planted}); }

OwnedMatcher after() {
  static const auto rules = [] {
    auto made = std::make_shared<weft::AfterRules>(kTexts, kVocab, std::string("x"));
    const auto guide = weft::held(plain());
    CHECK(made->settle(*guide).empty());
    return std::shared_ptr<const weft::AfterRules>(std::move(made));
  }();
  return OwnedMatcher(weft::after_matcher(rules, weft::held(plain()), 100));
}

OwnedMatcher closing() {
  static const weft::ClosingTables tables = [] {
    ClosingGrammar::Element letters, letter;
    letters.rule = 1;
    letters.min_times = 0;
    letters.max_times = 6;
    letter.set['a'] = letter.set['b'] = true;
    weft::ClosingTables made;
    made.grammar =
        std::make_shared<const ClosingGrammar>(std::vector<ClosingGrammar::Rule>{{{letters}}, {{letter}}}, kTexts);
    made.growth = std::make_shared<const weft::ClosingGrowth>(*made.grammar, kVocab, std::vector<std::int32_t>{kEnd});
    return made;
  }();
  std::string why;
  int needed = 0;
  return OwnedMatcher(weft::closing_matcher(plain().release(), tables, 6, why, needed));
}

weft_vocabulary vocabulary_seen;
void *open(const weft_vocabulary *vocabulary, const void *, size_t, char *, size_t) {
  vocabulary_seen = *vocabulary;
  return &vocabulary_seen;
}
void close(void *) {}
int make_matcher(void *, weft_matcher *made, char *, size_t) { return *made = plain().release(), 0; }
int make_recognizer(void *, weft_recognizer *made, char *, size_t) {
  if (throws) throw 7;
  return *made = {&kRecognizer, new Planted}, 0;
}
constexpr weft_plugin_ops kOfMatchers = {WEFT_PLUGIN_ABI, open, make_matcher, nullptr, close},
                          kOfRecognizers = {WEFT_PLUGIN_ABI, open, nullptr, make_recognizer, close};

OwnedMatcher plugin(const weft_plugin_ops &ops) {
  static const auto trie = std::make_shared<const weft::TokenTrie>(*kTexts, kVocab);
  const std::vector<std::int32_t> ends{kEnd};
  auto guide = std::make_shared<const weft::PluginGuide>(ops, kTexts, ends, kVocab, "");
  return OwnedMatcher(weft::plugin_matcher(std::move(guide), kTexts, trie, kVocab, ends));
}

const std::vector<std::pair<const char *, std::function<OwnedMatcher()>>> kKinds = {
    {"after", after},
    {"closing", closing},
    {"plug-in", [] { return plugin(kOfMatchers); }},
    {"recogniser", [] { return plugin(kOfRecognizers); }}};

// Each call returns a negative number on failure; the one for `fork` turns null into a negative number.
using Call = std::function<int(const weft_matcher &)>;
const std::vector<std::pair<const char *, Call>> kCalls = {
    {"accept", [](const weft_matcher &m) { return m.ops->accept(m.self, 1); }},
    {"validate",
     [](const weft_matcher &m) {
       const std::int32_t tokens[] = {1, 3, 1};
       return m.ops->validate(m.self, tokens, 3);
     }},
    {"fill",
     [](const weft_matcher &m) {
       std::int32_t row = 0;
       return m.ops->fill(m.self, &row, 1);
     }},
    {"rollback", [](const weft_matcher &m) { return m.ops->rollback(m.self, 1); }},
    {"fork",
     [](const weft_matcher &m) {
       const OwnedMatcher copy({m.ops, m.ops->fork(m.self)});
       return copy ? 0 : -1;
     }},
    {"reset", [](const weft_matcher &m) { return m.ops->reset(m.self); }},
    {"forced", [](const weft_matcher &m) {
       std::int32_t tokens[8];
       return m.ops->forced(m.self, tokens, 8);
     }}};

// Accepts some tokens, and so passes the trigger of a matcher that has one.
void begin(const weft_matcher &matcher) {
  for (const std::int32_t token : {1, 3, 4, 1}) matcher.ops->accept(matcher.self, token);
}

// Repeats `call` on new matchers, in which one allocation fails: the first, then the second, and so on. Returns the
// number of allocations, or -1 if the call threw.
int failures_of(const std::function<OwnedMatcher()> &make, const Call &call, bool begun) {
  weft::note_that_may_wait();  // starts the clock's thread before the count: its allocations may fail silently
  for (int number = 0;; ++number) {
    const OwnedMatcher matcher = make();
    if (begun) begin(matcher.native());
    allocations_left = number;
    int outcome = 0;
    try {
      outcome = call(matcher.native());
    } catch (...) {
      allocations_left = -1;
      return -1;
    }
    const bool has_failed = allocations_left < 0;
    allocations_left = -1;
    if (!has_failed) return number;
    CHECK(outcome == -1);
    CHECK(std::string(matcher.native().ops->error(matcher.native().self)) == "out of memory");
  }
}

TEST_CASE("memory that ends is an error of the matcher") {
  int total = 0;
  for (const auto &[kind, make] : kKinds)
    for (const auto &[name, call] : kCalls)
      for (const bool begun : {false, true}) {
        CAPTURE(kind);
        CAPTURE(name);
        CAPTURE(begun);
        const int count = failures_of(make, call, begun);
        CHECK(count >= 0);
        total += count;
      }
  CHECK(total > 30);
}

TEST_CASE("what stands within may throw") {
  for (const auto &[kind, make] : kKinds)
    for (const auto &[name, call] : kCalls) {
      OwnedMatcher matcher = make();
      begin(matcher.native());
      const weft_matcher &native = matcher.native();
      throws = true;
      int outcome = 0;
      try {
        outcome = call(native);
      } catch (...) {
        FAIL_CHECK("thrown by ", name, " of ", kind);
      }
      throws = false;
      CHECK(outcome < 0);
      CHECK(std::string(native.ops->error(native.self)).find("no std::exception") != std::string::npos);
    }
  const weft_matcher plug = plugin(kOfMatchers).release();
  throws = true;
  CHECK(plug.ops->is_terminated(plug.self) == -1);
  CHECK(plug.ops->temperature(plug.self) < 0);
  int drop = 0;
  CHECK(plug.ops->edit(plug.self, &drop, nullptr, 0) == -1);
  CHECK(plug.ops->error(plug.self) != nullptr);
  throws_last = true;
  plug.ops->destroy(plug.self);
  throws = throws_last = false;
}

}  // namespace
