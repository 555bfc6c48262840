// The functions of a matcher's table, which may not throw (weft/matcher.h). They are written as functions of the
// matcher's own type; what one throws becomes its failure and the matcher's `error`:
//
//   int foo_accept(FooMatcher &matcher, std::int32_t token);
//   const weft_matcher_ops kOps = {WEFT_MATCHER_ABI, guarded<foo_accept>, ...};
#pragma once

#include <weft/matcher.h>

#include <exception>
#include <new>
#include <string>
#include <type_traits>

namespace weft {

// The text of what is being handled, where there is memory for it.
inline void keep_raised(std::string &error) noexcept {
  static constexpr const char *kNoMemory = "out of memory";  // so short that it takes none
  try {
    try {
      throw;
    } catch (const std::bad_alloc &) {
      error = kNoMemory;
    } catch (const std::exception &raised) {
      error = raised.what();
    } catch (...) {
      error = "something was thrown that is no std::exception";
    }
  } catch (...) {
    error = kNoMemory;
  }
}

template <auto function>
struct Guarded;
template <class Matcher, class Result, class... Args, Result (*function)(Matcher &, Args...)>
struct Guarded<function> {
  static Result call(void *self, Args... args) noexcept {
    auto &matcher = *static_cast<Matcher *>(self);
    try {
      return function(matcher, args...);
    } catch (...) {
      // Nothing is left of a matcher that failed to go.
      if constexpr (!std::is_void_v<Result>) keep_raised(matcher.error);
    }
    return failure<Result>();
  }

 private:
  template <class Failed>
  static constexpr Failed failure() {
    if constexpr (std::is_same_v<Failed, const char *>) return "it failed to say why it failed";
    if constexpr (std::is_pointer_v<Failed>) return nullptr;
    if constexpr (std::is_arithmetic_v<Failed>) return -1;
  }
};
template <auto function>
inline constexpr auto guarded = &Guarded<function>::call;

}  // namespace weft
