// The variables that the sequences of one request share: the programs' storage commands. Python-free.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "wasm_limits.h"

namespace weft {

class WasmVariables {
 public:
  struct Value {
    std::uint64_t version = 0;
    std::shared_ptr<const std::string> bytes;
  };
  // What commands wrote, by the variables' names, so that it can be taken back.
  struct Write {
    std::uint64_t version;  // that the variable has since
    std::optional<Value> before;
  };
  using Writes = std::map<std::string, Write>;
  // `later` behind `writes`, as one.
  static void append(Writes &writes, const Writes &later);
  static std::size_t num_bytes(const Writes &writes);

  // Carries out one command (JSON) and returns the answer (JSON); what it wrote goes to `writes`. Throws WasmError
  // for a command that is none, and for one over the limits.
  std::string command(std::string_view text, const WasmLimits &limits, Writes &writes);

  // Takes writes back. A variable that another sequence has written since stays.
  void undo(const Writes &writes);

  std::optional<Value> get(const std::string &name);

  // A number for one more sequence of the request: 1, 2, ...
  std::uint32_t next_sequence();

 private:
  std::string write(const std::string &name, std::string value, bool append, const WasmLimits &limits, Writes &writes);

  std::mutex mutex_;
  std::map<std::string, Value, std::less<>> values_;
  std::size_t num_bytes_ = 0;  // of names and values
  std::uint32_t num_sequences_ = 0;
};

}  // namespace weft
