// Finds WebAssembly instructions that change tables. A copy of memory and globals would miss such a change.
// Python-free.
#pragma once

#include <string>
#include <string_view>

namespace weft::aici {

// Returns the name of the first instruction in a function body (locals and code) that changes a table, or "". This is
// reliable only for a body that compiles with the extensions that aici/host/engine.cpp enables. Throws ProgramError for
// a body that ends within an instruction, and for an unknown instruction.
std::string table_change(std::string_view body);

}  // namespace weft::aici
