// Wrappers for the functions in a matcher's table, which must not throw (weft/matcher.h). A wrapped function takes the
// matcher's own type. If it throws, the wrapper returns the failure value and stores the exception's text in the
// matcher's `error`:
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

// Stores the text of the exception being handled, if there is memory for it.
inline void keep_raised(std::string &error) noexcept {
  static constexpr const char *kNoMemory = "out of memory";  // short enough to need no allocation
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
      // The only void function is `destroy`, and after it there is no `error` to write to.
      if constexpr (!std::is_void_v<Result>) keep_raised(matcher.error);
    }
    return failure<Result>();
  }

 private:
  template <class Failed>
  static constexpr Failed failure() {
    if constexpr (std::is_same_v<Failed, const char *>) return "the matcher failed, and so did its error message";
    if constexpr (std::is_pointer_v<Failed>) return nullptr;
    if constexpr (std::is_arithmetic_v<Failed>) return -1;
  }
};
template <auto function>
inline constexpr auto guarded = &Guarded<function>::call;

}  // namespace weft
