// Texts of strangers between C++ and Python: any bytes become a text, and any text becomes bytes.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

namespace weft {

// What is no UTF-8 is replaced.
inline nanobind::str text_of(std::string_view bytes) {
  return nanobind::steal<nanobind::str>(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

// `str(object)`; what UTF-8 can't hold is escaped. Throws nb::python_error for what `str` raises.
inline std::string utf8_of(nanobind::handle object) {
  const nanobind::object encoded = nanobind::str(object).attr("encode")("utf-8", "backslashreplace");
  const auto bytes = nanobind::borrow<nanobind::bytes>(encoded);
  return {bytes.c_str(), bytes.size()};
}

}  // namespace weft
