#include "aici/host/self_test.h"

#include <cstring>
#include <memory>
#include <vector>

#include "aici/base/error.h"
#include "aici/host/engine.h"
#include "aici/host/guest_pool.h"

namespace weft {
namespace {

// (module
//   (import "env" "h" (func $h (param i32 i64) (result i32)))
//   (memory (export "memory") 1)
//   (global $g (export "g") (mut i64) (i64.const 5))
//   (func (export "f") (param i32) (result i32)
//     (global.set $g (i64.add (global.get $g) (i64.const 1)))
//     (i32.store (i32.const 8) (local.get 0))
//     (call $h (local.get 0) (global.get $g)))
//   (func (export "spin") (loop (br 0)))
//   (func (export "trap") unreachable))
constexpr unsigned char kModule[] = {
    0,  97, 115, 109, 1,  0, 0,   0,   1,   15,  3,   96,  2,   127, 126, 1,   127, 96,  1,   127, 1,   127,
    96, 0,  0,   2,   9,  1, 3,   101, 110, 118, 1,   104, 0,   0,   3,   4,   3,   1,   2,   2,   5,   3,
    1,  0,  1,   6,   6,  1, 126, 1,   66,  5,   11,  7,   32,  5,   6,   109, 101, 109, 111, 114, 121, 2,
    0,  1,  103, 3,   0,  1, 102, 0,   1,   4,   115, 112, 105, 110, 0,   2,   4,   116, 114, 97,  112, 0,
    3,  10, 36,  3,   22, 0, 35,  0,   66,  1,   124, 36,  0,   65,  8,   32,  0,   54,  2,   0,   32,  0,
    35, 0,  16,  0,   11, 7, 0,   3,   64,  12,  0,   11,  11,  3,   0,   0,   11};

wasm::Trap *host(void *env, wasm::Caller *caller, wasm::Raw *args, std::size_t) {
  const wasm::Api &api = wasm_api();
  auto *seen = static_cast<std::int64_t *>(api.wasmtime_context_get_data(api.wasmtime_caller_context(caller)));
  wasm::Extern memory{};
  const bool has_memory = api.wasmtime_caller_export_get(caller, "memory", 6, &memory);
  *seen = env == kModule && has_memory && memory.kind == wasm::kExternMemory ? args[1].i64 : -1;
  args[0].i32 *= 2;
  return nullptr;
}

wasm::Error *out_of_time(wasm::Context *, void *data, std::uint64_t *delta, std::uint8_t *kind) {
  auto &calls = *static_cast<int *>(data);
  if (++calls < 3) return *delta = 1, *kind = 0, nullptr;
  return wasm_api().wasmtime_error_new("out of time");
}

// Deletes its parts in the right order, whatever happens.
struct Parts {
  wasm::Module *module = nullptr;
  wasm::Store *store = nullptr;
  wasm::FuncType *type = nullptr;
  wasm::InstancePre *linked = nullptr;
  ~Parts() {
    const wasm::Api &api = wasm_api();
    if (store) api.wasmtime_store_delete(store);
    if (linked) api.wasmtime_instance_pre_delete(linked);
    if (module) api.wasmtime_module_delete(module);
    if (type) api.wasm_functype_delete(type);
  }
};

void expect(bool holds, const char *what) {
  if (!holds) throw WasmError(std::string("wasmtime's interface is not that of version 50: ") + what);
}

void try_out() {
  const wasm::Api &api = wasm_api();
  WasmEngine &engine = WasmEngine::of(WasmLimits{}.stack_bytes);
  Parts parts;
  const std::string artefact = engine.compile({reinterpret_cast<const char *>(kModule), sizeof kModule});
  parts.module = engine.load(artefact);

  wasm::Linker *linker = api.wasmtime_linker_new(engine.native());
  wasm::ValType *params[] = {api.wasm_valtype_new(wasm::kI32), api.wasm_valtype_new(wasm::kI64)};
  wasm::ValType *results[] = {api.wasm_valtype_new(wasm::kI32)};
  wasm::ValTypes param_types, result_types;
  api.wasm_valtype_vec_new(&param_types, 2, params);
  api.wasm_valtype_vec_new(&result_types, 1, results);
  parts.type = api.wasm_functype_new(&param_types, &result_types);
  wasm::Error *error = api.wasmtime_linker_define_func_unchecked(linker, "env", 3, "h", 1, parts.type, host,
                                                                 const_cast<unsigned char *>(kModule), nullptr);
  if (!error) error = api.wasmtime_linker_instantiate_pre(linker, parts.module, &parts.linked);
  api.wasmtime_linker_delete(linker);
  wasm_check(error, "linking");

  std::int64_t seen = 0;
  int epochs = 0;
  parts.store = api.wasmtime_store_new(engine.native(), &seen, nullptr);
  api.wasmtime_store_limiter(parts.store, 65536, 10, 1, 1, 1);
  api.wasmtime_store_epoch_deadline_callback(parts.store, out_of_time, &epochs, nullptr);
  wasm::Context *context = api.wasmtime_store_context(parts.store);
  WasmTicking ticking;
  api.wasmtime_context_set_epoch_deadline(context, 1000);
  wasm::Instance instance{};
  wasm::Trap *trap = nullptr;
  wasm_check(api.wasmtime_instance_pre_instantiate(parts.linked, context, &instance, &trap), "instantiating");
  expect(!trap, "instantiating trapped");

  const auto get = [&](const char *name, wasm::ExternKind kind) {
    wasm::Extern found{};
    expect(api.wasmtime_instance_export_get(context, &instance, name, std::strlen(name), &found) && found.kind == kind,
           "an export is not found");
    return found;
  };
  const wasm::Extern memory = get("memory", wasm::kExternMemory), global = get("g", wasm::kExternGlobal);
  const wasm::Extern f = get("f", wasm::kExternFunc);
  wasm::Extern nth{};
  char *name = nullptr;
  std::size_t length = 0;
  expect(api.wasmtime_instance_export_nth(context, &instance, 1, &name, &length, &nth) && length == 1 && *name == 'g' &&
             nth.kind == wasm::kExternGlobal,
         "exports are not numbered");
  expect(!api.wasmtime_instance_export_nth(context, &instance, 5, &name, &length, &nth), "exports are not counted");
  wasm::GlobalType *type = api.wasmtime_global_type(context, &global.of.global);
  const bool is_mutable = api.wasm_globaltype_mutability(type) == 1;
  api.wasm_globaltype_delete(type);
  expect(is_mutable, "a global's type");

  wasm::Val argument{}, result{}, value{};
  argument.of.i32 = 21;
  wasm_check(api.wasmtime_func_call(context, &f.of.func, &argument, 1, &result, 1, &trap), "calling");
  expect(!trap && result.kind == wasm::kI32 && result.of.i32 == 42 && seen == 6, "a call");
  api.wasmtime_global_get(context, &global.of.global, &value);
  expect(value.kind == wasm::kI64 && value.of.i64 == 6, "a global is not read");
  value.of.i64 = 70;
  wasm_check(api.wasmtime_global_set(context, &global.of.global, &value), "setting a global");
  wasm_check(api.wasmtime_func_call(context, &f.of.func, &argument, 1, &result, 1, &trap), "calling again");
  expect(!trap && seen == 71, "a global is not set");
  expect(api.wasmtime_memory_data_size(context, &memory.of.memory) == 65536 &&
             api.wasmtime_memory_data(context, &memory.of.memory)[8] == 21,
         "a memory");
  std::uint64_t before = 0;
  error = api.wasmtime_memory_grow(context, &memory.of.memory, 1, &before);
  if (error) api.wasmtime_error_delete(error);
  expect(error && api.wasmtime_memory_data_size(context, &memory.of.memory) == 65536, "a memory's limit");

  error = api.wasmtime_func_call(context, &f.of.func, nullptr, 0, nullptr, 0, &trap);
  expect(error && !trap, "a call with wrong arguments");
  api.wasmtime_error_delete(error);
  const wasm::Extern unreachable = get("trap", wasm::kExternFunc), spin = get("spin", wasm::kExternFunc);
  error = api.wasmtime_func_call(context, &unreachable.of.func, nullptr, 0, nullptr, 0, &trap);
  std::uint8_t code = 255;
  const bool trapped = !error && trap && api.wasmtime_trap_code(trap, &code) && code == wasm::kUnreachable;
  if (trap) api.wasm_trap_delete(trap);
  expect(trapped, "a trap");
  trap = nullptr;
  api.wasmtime_context_set_epoch_deadline(context, 1);
  error = api.wasmtime_func_call(context, &spin.of.func, nullptr, 0, nullptr, 0, &trap);
  expect(error && !trap && epochs == 3, "a program is not stopped");
  expect(wasm_text(error).find("out of time") != std::string::npos, "an error's text");
}

}  // namespace

std::string wasm_self_test() {
  try {
    run_as_guest(try_out);
  } catch (const WasmError &error) {
    return error.what();
  }
  return "";
}

}  // namespace weft
