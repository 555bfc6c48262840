#include "matcher_python.h"

#include <nanobind/stl/string.h>

#include <cstring>
#include <string>

#include "gil.h"

namespace nb = nanobind;

namespace weft {
namespace {

struct PythonMatcher {
  nb::object object, accept, fill, rollback, is_terminated;
  nb::object forced;  // or None
  nb::object row;     // numpy int32, as wide as the last fill asked for
  std::int32_t *row_data = nullptr;
  int row_words = 0;
  std::string error;

  explicit PythonMatcher(nb::object from)
      : object(std::move(from)),
        accept(object.attr("accept")),
        fill(object.attr("fill")),
        rollback(object.attr("rollback")),
        is_terminated(object.attr("is_terminated")),
        forced(nb::getattr(object, "forced", nb::none())) {}

  void widen(int words) {
    if (words == row_words) return;
    row = nb::module_::import_("numpy").attr("zeros")(words, "int32");
    row_data = reinterpret_cast<std::int32_t *>(nb::cast<std::uintptr_t>(row.attr("ctypes").attr("data")));
    row_words = words;
  }
};

PythonMatcher &self_of(void *self) { return *static_cast<PythonMatcher *>(self); }

std::string text_of(PythonMatcher &matcher, nb::python_error &raised, const char *method) {
  std::string text = nb::cast<std::string>(nb::str(raised.type().attr("__name__")));
  const auto value = nb::cast<std::string>(nb::str(raised.value()));
  if (!value.empty()) text += ": " + value;
  nb::handle trace = raised.traceback();
  if (trace.is_valid() && !trace.is_none()) {
    nb::object last = nb::borrow(trace);
    for (nb::object next = last.attr("tb_next"); !next.is_none(); next = last.attr("tb_next")) last = next;
    text += " (" + nb::cast<std::string>(nb::str(last.attr("tb_frame").attr("f_code").attr("co_filename"))) + ":" +
            std::to_string(nb::cast<int>(last.attr("tb_lineno"))) + ", in " + method + ")";
  }
  if (nb::hasattr(matcher.object, "error")) {
    nb::object own = matcher.object.attr("error")();
    if (nb::isinstance<nb::str>(own) && nb::len(own) > 0) text = nb::cast<std::string>(own);
  }
  return text;
}

// Runs `body` with the GIL; what it raises becomes `failed` and the matcher's error text.
template <class Result, class Body>
Result with_gil(void *self, const char *method, Result failed, Body body) {
  PythonMatcher &matcher = self_of(self);
  GilForCallback gil(method, "matcher");
  if (!gil) return matcher.error = "the interpreter is shutting down", failed;
  try {
    try {
      return body(matcher);
    } catch (nb::python_error &raised) {
      matcher.error = text_of(matcher, raised, method);
    }
  } catch (std::exception &raised) {
    matcher.error = std::string(method) + ": " + raised.what();
  }
  return failed;
}

int py_accept(void *self, std::int32_t token) {
  return with_gil(self, "accept", -1,
                  [&](PythonMatcher &matcher) { return nb::cast<bool>(nb::bool_(matcher.accept(token))) ? 1 : 0; });
}

int py_rollback(void *self, int count) {
  if (count == 0) return 0;
  return with_gil(self, "rollback", -1, [&](PythonMatcher &matcher) { return matcher.rollback(count), 0; });
}

int py_is_terminated(void *self) {
  // There is no error to return here; a matcher that can't say is treated as ended, and says why when it is used.
  return with_gil(self, "is_terminated", 1,
                  [](PythonMatcher &matcher) { return nb::cast<bool>(nb::bool_(matcher.is_terminated())) ? 1 : 0; });
}

int py_validate(void *self, const std::int32_t *tokens, int count) {
  int taken = 0, outcome = 1;
  while (taken < count && !py_is_terminated(self) && (outcome = py_accept(self, tokens[taken])) == 1) ++taken;
  const int undone = py_rollback(self, taken);
  return outcome < 0 || undone < 0 ? -1 : taken;
}

int py_fill(void *self, std::int32_t *row, int words) {
  return with_gil(self, "fill", -1, [&](PythonMatcher &matcher) {
    matcher.widen(words);
    const std::size_t bytes = static_cast<std::size_t>(words) * sizeof *row;
    std::memset(matcher.row_data, 0, bytes);
    nb::object blocks = matcher.fill(matcher.row);
    std::memcpy(row, matcher.row_data, bytes);
    return blocks.is_none() || nb::cast<bool>(nb::bool_(blocks)) ? 1 : 0;
  });
}

void *py_fork(void *self) {
  return with_gil<void *>(self, "fork", nullptr, [](PythonMatcher &matcher) -> void * {
    if (!nb::hasattr(matcher.object, "fork")) {
      matcher.error = "the matcher has no fork()";
      return nullptr;
    }
    return new PythonMatcher(matcher.object.attr("fork")());
  });
}

int py_reset(void *self) {
  return with_gil(self, "reset", -1, [](PythonMatcher &matcher) {
    if (!nb::hasattr(matcher.object, "reset")) return matcher.error = "the matcher has no reset()", -1;
    matcher.object.attr("reset")();
    return 0;
  });
}

int py_forced(void *self, std::int32_t *tokens, int capacity) {
  const int guessed = with_gil(self, "forced", -1, [&](PythonMatcher &matcher) {
    if (matcher.forced.is_none()) return 0;
    int count = 0;
    for (nb::handle token : nb::object(matcher.forced(capacity))) {
      if (count == capacity) break;
      tokens[count++] = nb::cast<std::int32_t>(token);
    }
    return count;
  });
  return guessed < 1 ? guessed : py_validate(self, tokens, guessed);
}

const char *py_error(void *self) { return self_of(self).error.c_str(); }

void py_destroy(void *self) {
  GilForCallback gil("destroy", "matcher");
  // Without an interpreter there is nothing left to let go of.
  if (gil) delete static_cast<PythonMatcher *>(self);
}

constexpr weft_matcher_ops kOps = {WEFT_MATCHER_ABI, py_accept, py_validate, py_fill,          py_rollback,
                                   py_fork,          py_reset,  py_forced,   py_is_terminated, py_error,
                                   py_destroy,       nullptr,   nullptr};

}  // namespace

weft_matcher python_matcher(nb::object object) {
  for (const char *method : {"accept", "fill", "rollback", "is_terminated"})
    if (!nb::hasattr(object, method) || !PyCallable_Check(nb::object(object.attr(method)).ptr()))
      throw nb::type_error((std::string("a matcher needs a method ") + method).c_str());
  return {&kOps, new PythonMatcher(std::move(object))};
}

}  // namespace weft
