// Matchers and recognisers over Python objects, and texts between C++ and Python.
#pragma once

#include <nanobind/nanobind.h>
#include <weft/matcher.h>

#include <memory>
#include <string>
#include <string_view>

#include "grammar/recognizer/handle.h"

namespace weft {

// Makes a matcher over `object`, which takes the GIL for each call. `object` must have accept(token) -> bool, fill(row)
// and is_terminated() -> bool. It may have rollback(count), fork() -> object, reset(), error() -> str and
// forced(capacity) -> list of int. `fill` gets a zeroed int32 numpy array of one bit per token, which belongs to the
// matcher. It returns None, or False if all tokens are allowed. `factory` (or None) makes a new object at its start. It
// replaces a missing fork() or reset(). A missing rollback() is replaced by a reset and accepting the tokens again.
// Throws nb::type_error for an object without the needed methods. GIL held.
weft_matcher python_matcher(nanobind::object object, nanobind::object factory);

// Makes a recogniser with `factory`. On failure returns null and sets `error`. The recogniser takes the GIL once for
// each group of calls (`enter` to `leave`).
std::unique_ptr<Recognizing> python_recognizer(const nanobind::object &factory, std::string &error);

// Converts any bytes to a str. Invalid UTF-8 is replaced, because the text is untrusted.
inline nanobind::str text_of(std::string_view bytes) {
  return nanobind::steal<nanobind::str>(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

// `str(object)` as UTF-8, with surrogates escaped, because UTF-8 can't encode them. Throws nb::python_error if `str`
// raises.
inline std::string utf8_of(nanobind::handle object) {
  const nanobind::object encoded = nanobind::str(object).attr("encode")("utf-8", "backslashreplace");
  const auto bytes = nanobind::borrow<nanobind::bytes>(encoded);
  return {bytes.c_str(), bytes.size()};
}

}  // namespace weft
