// A recogniser over a Python object. Takes the GIL once for each run of calls.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "grammar/recognizer/handle.h"

namespace weft {

// One that `factory` makes, or null and the reason. Takes the GIL.
std::unique_ptr<Recognizing> python_recognizer(const nanobind::object &factory, std::string &error);

}  // namespace weft
