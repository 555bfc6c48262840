// Finds instructions that change tables, which a copy of memory and globals would miss. Python-free.
#pragma once

#include <string>
#include <string_view>

namespace weft {

// The first instruction of a function's body (its locals and code) that changes a table, by its name, or "". What it
// says holds for a body that compiles without extensions beyond those of aici/host/engine.cpp. Throws WasmError
// for a body that ends within an instruction, and for an instruction of no known extension.
std::string table_change(std::string_view body);

}  // namespace weft
