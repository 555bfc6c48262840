// A small program that goes through all that weft relies on in wasmtime.
#pragma once

#include <string>

namespace weft {

// "" if the bound library behaves, else what does not.
std::string wasm_self_test();

}  // namespace weft
