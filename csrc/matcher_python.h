// A matcher over a Python object. Takes the GIL for each call.
#pragma once

#include <nanobind/nanobind.h>

#include "matcher.h"

namespace weft {

// `object` has accept(token) -> bool, fill(row) -> None, rollback(count) -> None and is_terminated() -> bool, and may
// have fork() -> object, reset() -> None, error() -> str and forced(capacity) -> list of int. `fill` gets a zeroed
// int32 numpy array of one bit per token, its own for each matcher. Throws nb::type_error for an object without the
// needed methods. GIL held.
weft_matcher python_matcher(nanobind::object object);

}  // namespace weft
