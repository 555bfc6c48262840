// The functions that programs import: AICI's interface, and the part of WASI that programs in C and Rust need to start.
// Python-free.
//
// A program has no access to files, network, threads, timers or entropy. Every pointer from a program is checked
// against its memory's bounds, with 64-bit arithmetic. No exception passes through the program's frames: it becomes a
// trap.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aici/base/limits.h"
#include "aici/base/wasmtime.h"
#include "aici/host/program.h"
#include "aici/host/variables.h"

namespace weft::aici {

struct HostFunction {
  const char *module, *name;
  const char *params;  // a letter for each parameter: i for i32, I for i64
  bool returns;        // whether it returns an i32
  wasmtime::HostFunc call;
};
const std::vector<HostFunction> &host_functions();

// The data that weft attaches to a wasmtime store. Host functions read and change it.
struct Host {
  std::shared_ptr<const Program> program;
  std::shared_ptr<Variables> variables;
  std::string argument;        // of `Guide.wasm`
  std::uint32_t sequence = 1;  // the sequence's number within its request
  bool is_muted = false;       // true while a copy starts: writes to the log and to variables have no effect
  TimeBudget time;             // of the current step or start

  // State of the current call into the program.
  std::string call_argument, tokenized, storage_reply, result;
  bool has_result = false, has_mask = false;
  std::uint32_t ticket = 0;        // names this call's mask in the program's decision
  std::vector<std::int32_t> mask;  // [ceil(num_tokens / 32)]
  std::size_t log_bytes = 0;       // written by this call
  std::int64_t num_tokens = 0;     // tokens after the prompt that the program knows in this step
  std::string problem;             // why a host function trapped

  // Writes to variables since the matcher last cleared the list.
  Variables::Writes writes;

  std::string log;                // the last part of what the program has written
  std::uint64_t log_dropped = 0;  // bytes dropped before it

  void begin_call(std::string argument_text);
  // Truncates the log. `total` is the number of bytes to keep of all that the program has written.
  void cut_log(std::uint64_t total);
  std::uint64_t log_total() const { return log_dropped + log.size(); }
};

}  // namespace weft::aici
