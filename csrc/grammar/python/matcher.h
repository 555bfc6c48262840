// A matcher over a Python object. Takes the GIL for each call.
#pragma once

#include <nanobind/nanobind.h>
#include <weft/matcher.h>

namespace weft {

// `object` has accept(token) -> bool, fill(row) -> None and is_terminated() -> bool, and may have rollback(count),
// fork() -> object, reset() -> None, error() -> str and forced(capacity) -> list of int. `fill` gets a zeroed int32
// numpy array of one bit per token, its own for each matcher. `factory` (or None) makes an object at its start: with it
// or reset(), a missing rollback is done by taking the tokens again, and with it a missing fork and reset. Throws
// nb::type_error for an object without the needed methods. GIL held.
weft_matcher python_matcher(nanobind::object object, nanobind::object factory);

}  // namespace weft
