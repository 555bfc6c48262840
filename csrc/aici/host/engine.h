// The use of wasmtime: its functions, an engine for each stack size, and the clock that stops programs. Python-free.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "aici/base/limits.h"
#include "aici/base/wasmtime.h"

namespace weft::wasmtime {

// wasmtime's functions. Throws aici::ProgramError unless `bind_wasmtime` has succeeded.
const Api &api();

}  // namespace weft::wasmtime

namespace weft::aici {

// Resolves wasmtime's functions from the library at an absolute path, and tests them. Returns "" or the reason of a
// failure. Does nothing after the first success. Thread-safe.
std::string bind_wasmtime(const char *library_path);

// Runs a small program that uses every function and layout that weft relies on. Returns "", or the first difference.
std::string self_test();

class Engine {
 public:
  // Returns the engine for programs with this stack size. It is created once and never destroyed. Throws ProgramError.
  static Engine &of(std::int64_t stack_bytes);

  wasmtime::Engine *native() const { return engine_; }

  // Compiles a module in this process. Any engine of the same library build can load the artefact. Throws ProgramError
  // with the compiler's message.
  std::string compile(std::string_view module);
  // Loads an artefact that `compile` made. An artefact is machine code: never load one from another source. Throws
  // ProgramError.
  wasmtime::Module *load(std::string_view artefact);
  // Resolves a module's imports to weft's functions. Throws ProgramError, for example for an import that weft does not
  // have.
  wasmtime::InstancePre *link(const wasmtime::Module *module);

 private:
  friend class EngineTable;
  explicit Engine(std::int64_t stack_bytes);

  wasmtime::Engine *engine_;
  wasmtime::Linker *linker_;
};

// While an object of this class lives, the epochs of all engines advance by one each millisecond.
class EpochTicks {
 public:
  EpochTicks();
  ~EpochTicks();
  EpochTicks(const EpochTicks &) = delete;
  EpochTicks &operator=(const EpochTicks &) = delete;
};

// Returns the message of an error or a trap, and deletes the error or trap.
std::string take_message(wasmtime::Error *error);
std::string take_message(wasmtime::Trap *trap);
// Throws ProgramError, with a text that begins with `what`, unless `error` is null. Deletes `error`.
void check_error(wasmtime::Error *error, const char *what);

}  // namespace weft::aici
