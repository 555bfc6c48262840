#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "grammar/python/wrap.h"
#include "hostfunc/gil.h"
#include "matcher/no_throw.h"

namespace nb = nanobind;

namespace weft {
namespace {

struct PythonMatcher {
  nb::object object, accept, fill, is_terminated;
  nb::object rollback, forced;  // or None
  nb::object factory;           // makes another object at its start; or None
  nb::object row;               // numpy int32, as wide as in the last fill
  std::int32_t *row_data = nullptr;
  int row_words = 0;
  bool has_ended = false;           // the result of is_terminated() after the last change
  bool is_lost = false;             // a replay failed, and the state is undefined
  std::vector<std::int32_t> taken;  // for replays
  std::string error;

  PythonMatcher(nb::object from, nb::object maker) : factory(std::move(maker)) { hold(std::move(from)); }

  void hold(nb::object from) {
    object = std::move(from);
    accept = object.attr("accept");
    fill = object.attr("fill");
    is_terminated = object.attr("is_terminated");
    rollback = nb::getattr(object, "rollback", nb::none());
    forced = nb::getattr(object, "forced", nb::none());
    look();
  }

  // Reads `is_terminated` of the object. Called after each change of state, where an exception can still be reported.
  void look() { has_ended = nb::cast<bool>(nb::bool_(is_terminated())); }

  bool take(std::int32_t token) {
    if (!nb::cast<bool>(nb::bool_(accept(token)))) return false;
    taken.push_back(token);
    look();
    return true;
  }

  // Resets the object and lets it accept the tokens again. If that fails, `taken` has the tokens accepted so far, and
  // the matcher is lost.
  void replay(const std::vector<std::int32_t> &tokens) {
    is_lost = true;
    taken.clear();
    if (nb::hasattr(object, "reset")) {
      object.attr("reset")();
      look();
    } else {
      hold(factory());
    }
    repeat(tokens);
    is_lost = false;
  }

  void repeat(const std::vector<std::int32_t> &tokens) {
    for (std::int32_t token : tokens)
      if (!take(token))
        throw std::runtime_error("it refused token " + std::to_string(token) +
                                 " in a replay, which it had taken; a matcher without rollback() or fork() has to "
                                 "answer the same tokens alike");
  }

  void widen(int words) {
    if (words == row_words) return;
    row = nb::module_::import_("numpy").attr("zeros")(words, "int32");
    row_data = reinterpret_cast<std::int32_t *>(nb::cast<std::uintptr_t>(row.attr("ctypes").attr("data")));
    row_words = words;
  }
};

std::string text_of(PythonMatcher &matcher, nb::python_error &raised, const char *method) {
  std::string text = utf8_of(raised.type().attr("__name__"));
  const std::string value = utf8_of(raised.value());
  if (!value.empty()) text += ": " + value;
  nb::handle trace = raised.traceback();
  if (trace.is_valid() && !trace.is_none()) {
    nb::object last = nb::borrow(trace);
    for (nb::object next = last.attr("tb_next"); !next.is_none(); next = last.attr("tb_next")) last = next;
    text += " (" + utf8_of(last.attr("tb_frame").attr("f_code").attr("co_filename")) + ":" +
            std::to_string(nb::cast<int>(last.attr("tb_lineno"))) + ", in " + method + ")";
  }
  if (nb::hasattr(matcher.object, "error")) {
    nb::object message = matcher.object.attr("error")();
    if (nb::isinstance<nb::str>(message) && nb::len(message) > 0) text = utf8_of(message);
  }
  return text;
}

// Runs `body` with the GIL. On an exception it returns `failed`, and the exception's text becomes the matcher's error.
template <class Result, class Body>
Result with_gil(PythonMatcher &matcher, const char *method, Result failed, Body body) {
  GilForCallback gil(method, "matcher");
  if (!gil) return matcher.error = "the interpreter is shutting down", failed;
  if (matcher.is_lost) return failed;  // `error` still has the reason
  try {
    try {
      return body();
    } catch (nb::python_error &raised) {
      matcher.error = text_of(matcher, raised, method);
    }
  } catch (std::exception &raised) {
    matcher.error = std::string(method) + ": " + raised.what();
  }
  return failed;
}

int py_accept(PythonMatcher &matcher, std::int32_t token) {
  return with_gil(matcher, "accept", -1, [&] { return matcher.take(token) ? 1 : 0; });
}

// Rolls back the last `count` tokens. Returns 0, or -1 on failure.
int take_back(PythonMatcher &matcher, int count) {
  const auto there = static_cast<int>(matcher.taken.size());
  if (count < 0) return matcher.error = "can't roll back a negative number of tokens", -1;
  if (count == 0) return 0;
  if (!matcher.rollback.is_none()) {
    matcher.rollback(count);
    matcher.taken.resize(static_cast<std::size_t>(std::max(there - count, 0)));
    matcher.look();
    return 0;
  }
  if (count > there)
    return matcher.error = "rollback of " + std::to_string(count) + " tokens, of " + std::to_string(there), -1;
  matcher.replay({matcher.taken.begin(), matcher.taken.end() - count});
  return 0;
}

int py_rollback(PythonMatcher &matcher, int count) {
  if (count == 0) return 0;
  return with_gil(matcher, "rollback", -1, [&] { return take_back(matcher, count); });
}

// Does not call Python, so it cannot fail.
int py_is_terminated(PythonMatcher &matcher) { return matcher.has_ended ? 1 : 0; }

int py_validate(PythonMatcher &matcher, const std::int32_t *tokens, int count) {
  return with_gil(matcher, "validate", -1, [&] {
    const std::size_t before = matcher.taken.size();
    const auto give_back = [&] { return take_back(matcher, static_cast<int>(matcher.taken.size() - before)); };
    int taken = 0;
    try {
      while (taken < count && !matcher.has_ended && matcher.take(tokens[taken])) ++taken;
    } catch (...) {
      give_back();
      throw;
    }
    return give_back() != 0 ? -1 : taken;
  });
}

int py_fill(PythonMatcher &matcher, std::int32_t *row, int words) {
  return with_gil(matcher, "fill", -1, [&] {
    matcher.widen(words);
    const std::size_t bytes = static_cast<std::size_t>(words) * sizeof *row;
    std::memset(matcher.row_data, 0, bytes);
    nb::object blocks = matcher.fill(matcher.row);
    const bool is_masked = blocks.is_none() || nb::cast<bool>(nb::bool_(blocks));
    if (is_masked)
      std::memcpy(row, matcher.row_data, bytes);
    else
      std::memset(row, 0xff, bytes);  // ignore what `fill` wrote
    return is_masked ? 1 : 0;
  });
}

void *py_fork(PythonMatcher &matcher) {
  return with_gil<void *>(matcher, "fork", nullptr, [&]() -> void * {
    if (nb::hasattr(matcher.object, "fork")) {
      auto copy = std::make_unique<PythonMatcher>(matcher.object.attr("fork")(), matcher.factory);
      copy->taken = matcher.taken;
      return copy.release();
    }
    if (matcher.factory.is_none()) return matcher.error = "the matcher has no fork()", nullptr;
    auto copy = std::make_unique<PythonMatcher>(matcher.factory(), matcher.factory);
    copy->repeat(matcher.taken);
    return copy.release();
  });
}

int py_reset(PythonMatcher &matcher) {
  return with_gil(matcher, "reset", -1, [&] {
    if (!nb::hasattr(matcher.object, "reset") && matcher.factory.is_none())
      return matcher.error = "the matcher has no reset()", -1;
    matcher.replay({});
    return 0;
  });
}

int py_forced(PythonMatcher &matcher, std::int32_t *tokens, int capacity) {
  const int guessed = with_gil(matcher, "forced", -1, [&] {
    if (matcher.forced.is_none()) return 0;
    int count = 0;
    for (nb::handle token : nb::object(matcher.forced(capacity))) {
      if (count == capacity) break;
      tokens[count++] = nb::cast<std::int32_t>(token);
    }
    return count;
  });
  return guessed < 1 ? guessed : py_validate(matcher, tokens, guessed);
}

const char *py_error(PythonMatcher &matcher) { return matcher.error.c_str(); }

void py_destroy(PythonMatcher &matcher) {
  GilForCallback gil("destroy", "matcher");
  // Without an interpreter the references cannot be released, so leak the matcher.
  if (gil) delete &matcher;
}

constexpr weft_matcher_ops kOps = {WEFT_MATCHER_ABI,
                                   guarded<py_accept>,
                                   guarded<py_validate>,
                                   guarded<py_fill>,
                                   guarded<py_rollback>,
                                   guarded<py_fork>,
                                   guarded<py_reset>,
                                   guarded<py_forced>,
                                   guarded<py_is_terminated>,
                                   guarded<py_error>,
                                   guarded<py_destroy>,
                                   nullptr,
                                   nullptr};

}  // namespace

weft_matcher python_matcher(nb::object object, nb::object factory) {
  for (const char *method : {"accept", "fill", "is_terminated"})
    if (!nb::hasattr(object, method) || !PyCallable_Check(nb::object(object.attr(method)).ptr()))
      throw nb::type_error((std::string("a matcher needs a method ") + method).c_str());
  if (factory.is_none() && !nb::hasattr(object, "rollback") && !nb::hasattr(object, "reset"))
    throw nb::type_error("a matcher needs a method rollback, or reset, or a factory that makes another");
  return {&kOps, new PythonMatcher(std::move(object), std::move(factory))};
}

}  // namespace weft
