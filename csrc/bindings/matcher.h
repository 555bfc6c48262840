// The Python class of a matcher, for the bindings that make matchers.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "grammar/python/wrap.h"
#include "matcher/handle.h"

namespace weft {

struct Matcher {
  MatcherRef ref;
  bool needs_python = false;  // the matcher, or one inside it, is written in Python
};

inline Matcher wrap(weft_matcher matcher, bool needs_python = false) {
  auto ref = std::make_shared<MatcherHandle>(matcher);
  ref->may_wait = needs_python;
  return {std::move(ref), needs_python};
}

// Calls a matcher without the GIL, because a call may take as long as a program's step. A matcher that needs Python is
// called with the GIL, because it would immediately retake it.
template <class Call>
auto called(const Matcher &matcher, Call call) {
  if (matcher.needs_python) return call();
  nanobind::gil_scoped_release release;
  return call();
}

// Raises the exception `name` of weft.errors, whose constructor escapes the text.
[[noreturn]] inline void raise(const char *name, const std::string &text) {
  nanobind::object type = nanobind::module_::import_("weft.errors").attr(name);
  PyErr_SetObject(type.ptr(), text_of(text).ptr());
  throw nanobind::python_error();
}

}  // namespace weft
