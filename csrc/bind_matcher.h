// The Python class of a matcher, for the files that make matchers.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "matcher_handle.h"

namespace weft {

struct Matcher {
  MatcherRef ref;
};

inline Matcher own(weft_matcher matcher) { return {std::make_shared<MatcherHandle>(matcher)}; }

// Raises the class `name` of weft.errors.
[[noreturn]] inline void raise(const char *name, const std::string &text) {
  nanobind::object type = nanobind::module_::import_("weft.errors").attr(name);
  PyErr_SetString(type.ptr(), text.c_str());
  throw nanobind::python_error();
}

}  // namespace weft
