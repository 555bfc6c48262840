// Shared variables for tests. Writes are JSON commands, as a program sends them.
#pragma once

#include <cstdint>
#include <string>

#include "aici/base/limits.h"
#include "aici/host/variables.h"

namespace weft::test {

using aici::Limits;
using aici::Variables;

struct Shared {
  Variables variables;
  Limits limits;

  std::string write(const char *name, const char *op, const std::string &value, Variables::Writes &writes,
                    Variables::Origin origin = {0, 0}) {
    std::string hex;
    for (const char c : value) hex += {"0123456789abcdef"[c >> 4 & 15], "0123456789abcdef"[c & 15]};
    return variables.command(
        std::string(R"({"WriteVar":{"name":")") + name + R"(","op":")" + op + R"(","value":")" + hex + "\"}}", limits,
        writes, origin);
  }
  // Returns the variable's version followed by its value, or "-" if it does not exist.
  std::string get(const char *name) {
    const auto found = variables.get(name);
    return found ? std::to_string(found->version) + *found->bytes : "-";
  }
};

}  // namespace weft::test
