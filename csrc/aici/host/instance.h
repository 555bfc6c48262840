// One instance of a program: its store, its memory and globals, and calls into it. Python-free.
//
// Functions that may run the program's code (`instantiate`, `create`, `init_prompt`, `mid_process`) must be called on a
// guest thread, within a time budget that `host.time` began on that thread. They throw ProgramError.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aici/host/host.h"

namespace weft::aici {

class Instance {
 public:
  explicit Instance(Host host_parts) : host(std::move(host_parts)) {}
  ~Instance();
  Instance(const Instance &) = delete;
  Instance &operator=(const Instance &) = delete;

  // Replaces the store and the instance by new ones.
  void instantiate();
  // Calls aici_init and aici_create.
  void create();
  // Call aici_init_prompt and aici_mid_process. Argument and result are JSON; the result is valid until the next call.
  const std::string &init_prompt(std::string argument);
  const std::string &mid_process(std::string argument);

  // The program's state. `memory()` is valid until the next call.
  std::uint8_t *memory() const;
  std::size_t memory_size() const;
  std::uint64_t num_memories() const { return num_memories_; }  // number of instantiations, which identifies the memory
  void grow_memory(std::size_t size);
  std::vector<wasmtime::Val> globals() const;  // the mutable ones, which the audit exported
  void set_globals(const std::vector<wasmtime::Val> &values);

  Host host;
  std::int32_t handle = 0;  // from aici_create

 private:
  void call(const wasmtime::Func &function, const wasmtime::Val *argument, wasmtime::Val *result, const char *name);
  const std::string &ask(const wasmtime::Func &function, std::string argument, const char *name);
  wasmtime::Func function(const char *name);
  void set_deadline();
  [[noreturn]] void fail(std::string problem);
  std::string text_of(wasmtime::Trap *trap) const;
  static wasmtime::Error *out_of_time(wasmtime::Context *, void *self, std::uint64_t *delta, std::uint8_t *kind);
  void delete_store();

  wasmtime::Store *store_ = nullptr;
  wasmtime::Context *context_ = nullptr;
  wasmtime::Instance instance_{};
  wasmtime::Memory memory_{};
  std::uint64_t num_memories_ = 0;
  std::vector<wasmtime::Global> globals_;
  wasmtime::Func init_prompt_{}, mid_process_{};
};

}  // namespace weft::aici
