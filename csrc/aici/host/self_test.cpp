#include <cstring>
#include <memory>
#include <vector>

#include "aici/base/limits.h"
#include "aici/host/engine.h"
#include "aici/host/guest_pool.h"

namespace weft::aici {
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

wasmtime::Trap *host(void *env, wasmtime::Caller *caller, wasmtime::Raw *args, std::size_t) {
  const wasmtime::Api &api = wasmtime::api();
  auto *seen = static_cast<std::int64_t *>(api.wasmtime_context_get_data(api.wasmtime_caller_context(caller)));
  wasmtime::Extern memory{};
  const bool has_memory = api.wasmtime_caller_export_get(caller, "memory", 6, &memory);
  *seen = env == kModule && has_memory && memory.kind == wasmtime::kExternMemory ? args[1].i64 : -1;
  args[0].i32 *= 2;
  return nullptr;
}

wasmtime::Error *out_of_time(wasmtime::Context *, void *data, std::uint64_t *delta, std::uint8_t *kind) {
  auto &calls = *static_cast<int *>(data);
  if (++calls < 3) return *delta = 1, *kind = 0, nullptr;
  return wasmtime::api().wasmtime_error_new("out of time");
}

// Owns wasmtime objects. Deletes them in the order that wasmtime needs, also after an exception.
struct Parts {
  wasmtime::Module *module = nullptr;
  wasmtime::Store *store = nullptr;
  wasmtime::FuncType *type = nullptr;
  wasmtime::InstancePre *linked = nullptr;
  ~Parts() {
    const wasmtime::Api &api = wasmtime::api();
    if (store) api.wasmtime_store_delete(store);
    if (linked) api.wasmtime_instance_pre_delete(linked);
    if (module) api.wasmtime_module_delete(module);
    if (type) api.wasm_functype_delete(type);
  }
};

void expect(bool holds, const char *what) {
  if (!holds) throw ProgramError(std::string("wasmtime's interface is not that of version 50: ") + what);
}

void run_small_program() {
  const wasmtime::Api &api = wasmtime::api();
  Engine &engine = Engine::of(Limits{}.stack_bytes);
  Parts parts;
  const std::string artefact = engine.compile({reinterpret_cast<const char *>(kModule), sizeof kModule});
  parts.module = engine.load(artefact);

  wasmtime::Linker *linker = api.wasmtime_linker_new(engine.native());
  wasmtime::ValType *params[] = {api.wasm_valtype_new(wasmtime::kI32), api.wasm_valtype_new(wasmtime::kI64)};
  wasmtime::ValType *results[] = {api.wasm_valtype_new(wasmtime::kI32)};
  wasmtime::ValTypes param_types, result_types;
  api.wasm_valtype_vec_new(&param_types, 2, params);
  api.wasm_valtype_vec_new(&result_types, 1, results);
  parts.type = api.wasm_functype_new(&param_types, &result_types);
  wasmtime::Error *error = api.wasmtime_linker_define_func_unchecked(linker, "env", 3, "h", 1, parts.type, host,
                                                                     const_cast<unsigned char *>(kModule), nullptr);
  if (!error) error = api.wasmtime_linker_instantiate_pre(linker, parts.module, &parts.linked);
  api.wasmtime_linker_delete(linker);
  check_error(error, "linking");

  std::int64_t seen = 0;
  int epochs = 0;
  parts.store = api.wasmtime_store_new(engine.native(), &seen, nullptr);
  api.wasmtime_store_limiter(parts.store, 65536, 10, 1, 1, 1);
  api.wasmtime_store_epoch_deadline_callback(parts.store, out_of_time, &epochs, nullptr);
  wasmtime::Context *context = api.wasmtime_store_context(parts.store);
  EpochTicks ticking;
  api.wasmtime_context_set_epoch_deadline(context, 1000);
  wasmtime::Instance instance{};
  wasmtime::Trap *trap = nullptr;
  check_error(api.wasmtime_instance_pre_instantiate(parts.linked, context, &instance, &trap), "instantiating");
  expect(!trap, "instantiating trapped");

  const auto exported = [&](const char *name, wasmtime::ExternKind kind) {
    wasmtime::Extern item{};
    expect(api.wasmtime_instance_export_get(context, &instance, name, std::strlen(name), &item) && item.kind == kind,
           "an export is not found");
    return item;
  };
  const wasmtime::Extern memory = exported("memory", wasmtime::kExternMemory),
                         global = exported("g", wasmtime::kExternGlobal);
  const wasmtime::Extern f = exported("f", wasmtime::kExternFunc);
  wasmtime::Extern nth{};
  char *name = nullptr;
  std::size_t length = 0;
  expect(api.wasmtime_instance_export_nth(context, &instance, 1, &name, &length, &nth) && length == 1 && *name == 'g' &&
             nth.kind == wasmtime::kExternGlobal,
         "exports are not numbered");
  expect(!api.wasmtime_instance_export_nth(context, &instance, 5, &name, &length, &nth), "exports are not counted");
  wasmtime::GlobalType *type = api.wasmtime_global_type(context, &global.of.global);
  const bool is_mutable = api.wasm_globaltype_mutability(type) == 1;
  api.wasm_globaltype_delete(type);
  expect(is_mutable, "a global's type");

  wasmtime::Val argument{}, result{}, value{};
  argument.of.i32 = 21;
  check_error(api.wasmtime_func_call(context, &f.of.func, &argument, 1, &result, 1, &trap), "calling");
  expect(!trap && result.kind == wasmtime::kI32 && result.of.i32 == 42 && seen == 6, "a call");
  api.wasmtime_global_get(context, &global.of.global, &value);
  expect(value.kind == wasmtime::kI64 && value.of.i64 == 6, "a global is not read");
  value.of.i64 = 70;
  check_error(api.wasmtime_global_set(context, &global.of.global, &value), "setting a global");
  check_error(api.wasmtime_func_call(context, &f.of.func, &argument, 1, &result, 1, &trap), "calling again");
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
  const wasmtime::Extern unreachable = exported("trap", wasmtime::kExternFunc),
                         spin = exported("spin", wasmtime::kExternFunc);
  error = api.wasmtime_func_call(context, &unreachable.of.func, nullptr, 0, nullptr, 0, &trap);
  std::uint8_t code = 255;
  const bool trapped = !error && trap && api.wasmtime_trap_code(trap, &code) && code == wasmtime::kUnreachable;
  if (trap) api.wasm_trap_delete(trap);
  expect(trapped, "a trap");
  trap = nullptr;
  api.wasmtime_context_set_epoch_deadline(context, 1);
  error = api.wasmtime_func_call(context, &spin.of.func, nullptr, 0, nullptr, 0, &trap);
  expect(error && !trap && epochs == 3, "a program is not stopped");
  expect(take_message(error).find("out of time") != std::string::npos, "an error's text");
}

}  // namespace

std::string self_test() {
  try {
    run_as_guest(run_small_program);
  } catch (const ProgramError &error) {
    return error.what();
  }
  return "";
}

}  // namespace weft::aici
