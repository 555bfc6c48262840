// wasmtime, as weft runs it: the library's functions, one engine for each size of the programs' stacks, and the clock
// that stops programs. Python-free.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "aici/base/abi.h"
#include "aici/base/limits.h"

namespace weft {

// Resolves the interface from the installed library (an absolute path) and tries it. Returns "" if it behaves as weft
// relies on, else what does not. Safe to call again; the first success stays.
std::string wasm_bind(const char *library_path);

// The functions. Throws WasmError before a successful wasm_bind.
const wasm::Api &wasm_api();

class WasmEngine {
 public:
  // The engine for programs with so much stack; made once, never destroyed. Throws WasmError.
  static WasmEngine &of(std::int64_t stack_bytes);

  wasm::Engine *native() const { return engine_; }

  // Compiles a module, in this process; the artefact can be loaded by any engine of this library's build. Throws
  // WasmError with the compiler's words.
  std::string compile(std::string_view module);
  // Loads an artefact that `compile` made. It is machine code: never one that came from elsewhere. Throws WasmError.
  wasm::Module *load(std::string_view artefact);
  // A module with weft's functions behind its imports. Throws WasmError, for one that imports anything else, too.
  wasm::InstancePre *link(const wasm::Module *module);

 private:
  friend class EngineTable;
  explicit WasmEngine(std::int64_t stack_bytes);

  wasm::Engine *engine_;
  wasm::Linker *linker_;
};

// While one lives, the epochs of all engines go on, one a millisecond.
class WasmTicking {
 public:
  WasmTicking();
  ~WasmTicking();
  WasmTicking(const WasmTicking &) = delete;
  WasmTicking &operator=(const WasmTicking &) = delete;
};

// The text of an error or a trap, which is deleted.
std::string wasm_text(wasm::Error *error);
std::string wasm_text(wasm::Trap *trap);
// Throws WasmError, beginning with `what`, unless `error` is null; deletes it.
void wasm_check(wasm::Error *error, const char *what);

}  // namespace weft
