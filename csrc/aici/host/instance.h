// One instance of a program: its store, its memory and globals, and calls into it. Python-free.
//
// Whatever may run the program's code (`instantiate`, `call`, `ask`) belongs on a guest thread, and within the time
// that `host.time` was told of there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aici/host/host.h"

namespace weft {

class WasmInstance {
 public:
  explicit WasmInstance(WasmHost host_parts) : host(std::move(host_parts)) {}
  ~WasmInstance();
  WasmInstance(const WasmInstance &) = delete;
  WasmInstance &operator=(const WasmInstance &) = delete;

  // A new store with a new instance. Throws WasmError, as do the calls.
  void instantiate();
  // aici_init, aici_create.
  void create();
  // Calls `aici_init_prompt` or `aici_mid_process` with an argument; the result, JSON.
  const std::string &init_prompt(std::string argument);
  const std::string &mid_process(std::string argument);

  // The state beside the host's. `memory` is valid until the next call.
  std::uint8_t *memory() const;
  std::size_t memory_size() const;
  std::uint64_t num_memories() const { return num_memories_; }  // it had, with this one
  void grow_memory(std::size_t size);
  std::vector<wasm::Val> globals() const;  // those that are exported and change
  void set_globals(const std::vector<wasm::Val> &values);

  WasmHost host;
  std::int32_t handle = 0;  // what aici_create returned

 private:
  void call(const wasm::Func &function, const wasm::Val *argument, wasm::Val *result, const char *name);
  const std::string &ask(const wasm::Func &function, std::string argument, const char *name);
  wasm::Func function(const char *name);
  void set_deadline();
  [[noreturn]] void fail(std::string problem);
  std::string text_of(wasm::Trap *trap) const;
  static wasm::Error *out_of_time(wasm::Context *, void *self, std::uint64_t *delta, std::uint8_t *kind);
  void delete_store();

  wasm::Store *store_ = nullptr;
  wasm::Context *context_ = nullptr;
  wasm::Instance instance_{};
  wasm::Memory memory_{};
  std::uint64_t num_memories_ = 0;
  std::vector<wasm::Global> globals_;
  wasm::Func init_prompt_{}, mid_process_{};
};

}  // namespace weft
