// What ends a program's request: a limit, a trap, a broken promise. Its text is for who uploaded the program.
#pragma once

#include <stdexcept>

namespace weft {

struct WasmError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace weft
