// Matchers and recognisers over Python objects, and texts between C++ and Python.
#pragma once

#include <nanobind/nanobind.h>
#include <weft/matcher.h>

#include <memory>
#include <string>
#include <string_view>

#include "grammar/recognizer/handle.h"

namespace weft {

// A matcher over `object`; it takes the GIL for each call. `object` has accept(token) -> bool, fill(row) -> None and
// is_terminated() -> bool, and may have rollback(count), fork() -> object, reset() -> None, error() -> str and
// forced(capacity) -> list of int. `fill` gets a zeroed int32 numpy array of one bit per token, which belongs to the
// matcher. `factory` (or None) makes an object at its start: with it or reset(), a missing rollback is done by taking
// the tokens again, and with it a missing fork and reset. Throws nb::type_error for an object without the needed
// methods. GIL held.
weft_matcher python_matcher(nanobind::object object, nanobind::object factory);

// A recogniser that `factory` makes, or null and the reason. It takes the GIL once for each run of calls.
std::unique_ptr<Recognizing> python_recognizer(const nanobind::object &factory, std::string &error);

// Texts may come from anywhere, so any bytes become a str (invalid UTF-8 is replaced), and any str becomes bytes.
inline nanobind::str text_of(std::string_view bytes) {
  return nanobind::steal<nanobind::str>(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

// `str(object)`, with surrogates escaped, which UTF-8 can't hold. Throws nb::python_error if `str` raises.
inline std::string utf8_of(nanobind::handle object) {
  const nanobind::object encoded = nanobind::str(object).attr("encode")("utf-8", "backslashreplace");
  const auto bytes = nanobind::borrow<nanobind::bytes>(encoded);
  return {bytes.c_str(), bytes.size()};
}

}  // namespace weft
