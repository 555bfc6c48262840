// The Python class of a matcher, for the files that make matchers.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "grammar/python/wrap.h"
#include "matcher/handle.h"

namespace weft {

struct Matcher {
  MatcherRef ref;
  bool needs_python = false;  // it, or what it stands on, is written in Python
};

inline Matcher own(weft_matcher matcher, bool needs_python = false) {
  return {std::make_shared<MatcherHandle>(matcher), needs_python};
}

// Makes a call of a matcher, which may take as long as a program's step, without the GIL. A matcher that would take it
// again at once keeps it.
template <class Call>
auto called(const Matcher &matcher, Call call) {
  if (matcher.needs_python) return call();
  nanobind::gil_scoped_release release;
  return call();
}

// Raises the class `name` of weft.errors, which escapes the text.
[[noreturn]] inline void raise(const char *name, const std::string &text) {
  nanobind::object type = nanobind::module_::import_("weft.errors").attr(name);
  PyErr_SetObject(type.ptr(), text_of(text).ptr());
  throw nanobind::python_error();
}

}  // namespace weft
