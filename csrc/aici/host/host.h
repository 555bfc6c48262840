// The functions behind a program's imports: AICI's interface, and the part of WASI that lets ordinary C and Rust start.
//
// A program sees no files, network, threads, timers or entropy; each pointer that it gives is checked against its
// memory in 64 bits. Nothing here throws through the program's frames: what is wrong becomes a trap.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aici/base/abi.h"
#include "aici/base/time.h"
#include "aici/host/program.h"
#include "aici/host/variables.h"

namespace weft {

struct HostFunction {
  const char *module, *name;
  const char *params;  // one letter each: i for i32, I for i64
  bool returns;        // an i32
  wasm::HostFunc call;
};
const std::vector<HostFunction> &host_functions();

// What the functions act on: the data of a store.
struct WasmHost {
  std::shared_ptr<const WasmProgram> program;
  std::shared_ptr<WasmVariables> variables;
  std::string argument;        // the program's, from its uploader
  std::uint32_t sequence = 1;  // the number of the sequence
  bool is_muted = false;       // a copy is being made: what it does leaves no trace
  WasmTime time;               // of the step at work, or the start

  // The state of the call at work.
  std::string call_argument, tokenized, storage_reply, result;
  bool has_result = false, has_mask = false;
  std::uint32_t ticket = 0;        // of the call's mask
  std::vector<std::int32_t> mask;  // [ceil(num_tokens / 32)]
  std::size_t log_bytes = 0;       // written by this call
  std::int64_t num_tokens = 0;     // of the sequence's text that it is told of, all in all
  std::string problem;             // why a function trapped

  // Since the caller, which takes tokens back, last emptied it.
  WasmVariables::Writes writes;

  // All that was written and is kept.
  std::string log;
  std::uint64_t log_dropped = 0;  // bytes before it

  void begin_call(std::string argument_text);
  // Forget what was written to the log after its first `total` bytes.
  void cut_log(std::uint64_t total);
  std::uint64_t log_total() const { return log_dropped + log.size(); }
};

}  // namespace weft
