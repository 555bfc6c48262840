// Declarations of the part of wasmtime's C interface that weft calls: version 50.
//
// The functions are resolved with dlsym from the installed library, so building weft needs no wasmtime. Before weft
// trusts these layouts, `aici/host/self_test.cpp` runs a small program through all of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::wasmtime {

struct Config;
struct Engine;
struct Module;
struct Linker;
struct InstancePre;
struct Store;
struct Context;
struct Caller;
struct Error;
struct Trap;
struct FuncType;
struct ValType;
struct GlobalType;

struct Func {
  std::uint64_t store;
  void *code;
};

// As in C, the first two members are in a nested struct, because its padding determines the offset of `second`.
struct Memory {
  struct {
    std::uint64_t store;
    std::uint32_t first;
  } head;
  std::uint32_t second;
};

struct Global {
  std::uint64_t store;
  std::uint32_t first, second, third;
};

struct Instance {
  std::uint64_t store;
  std::size_t index;
};

enum ExternKind : std::uint8_t { kExternFunc = 0, kExternGlobal = 1, kExternTable = 2, kExternMemory = 3 };

struct Extern {
  ExternKind kind;
  union {
    Func func;
    Global global;
    Memory memory;
  } of;
};

enum ValKind : std::uint8_t { kI32 = 0, kI64 = 1, kF32 = 2, kF64 = 3, kV128 = 4 };

// weft uses the numeric kinds only, which own no memory.
struct Val {
  ValKind kind;
  union {
    std::int32_t i32;
    std::int64_t i64;
    std::uint64_t words[3];
  } of;
};

union alignas(16) Raw {
  std::int32_t i32;
  std::int64_t i64;
  std::uint8_t v128[16];
};

struct Bytes {
  std::size_t size;
  char *data;
};

struct ValTypes {
  std::size_t size;
  ValType **data;
};

static_assert(sizeof(Func) == 16 && sizeof(Memory) == 24 && sizeof(Global) == 24 && sizeof(Extern) == 32 &&
                  sizeof(Val) == 32 && sizeof(Raw) == 16,
              "wasmtime 50 layout");

enum TrapCode : std::uint8_t {
  kStackOverflow = 0,
  kMemoryOutOfBounds = 1,
  kTableOutOfBounds = 3,
  kIndirectCallToNull = 4,
  kBadSignature = 5,
  kIntegerOverflow = 6,
  kIntegerDivisionByZero = 7,
  kBadConversionToInteger = 8,
  kUnreachable = 9,
  kInterrupt = 10,
};

using HostFunc = Trap *(*)(void *env, Caller *caller, Raw *args, std::size_t count);
using Finalizer = void (*)(void *);
using EpochCallback = Error *(*)(Context *context, void *data, std::uint64_t *delta, std::uint8_t *kind);

// The functions that weft calls, as X(result, name, arguments).
#define WEFT_WASMTIME_CALLS(X)                                                                                        \
  X(Config *, wasm_config_new, ())                                                                                    \
  X(void, wasmtime_config_epoch_interruption_set, (Config *, bool))                                                   \
  X(void, wasmtime_config_max_wasm_stack_set, (Config *, std::size_t))                                                \
  X(void, wasmtime_config_signals_based_traps_set, (Config *, bool))                                                  \
  X(void, wasmtime_config_native_unwind_info_set, (Config *, bool))                                                   \
  X(void, wasmtime_config_wasm_component_model_async_set, (Config *, bool))                                           \
  X(void, wasmtime_config_wasm_component_model_set, (Config *, bool))                                                 \
  X(void, wasmtime_config_wasm_threads_set, (Config *, bool))                                                         \
  X(void, wasmtime_config_shared_memory_set, (Config *, bool))                                                        \
  X(void, wasmtime_config_wasm_memory64_set, (Config *, bool))                                                        \
  X(void, wasmtime_config_wasm_multi_memory_set, (Config *, bool))                                                    \
  X(void, wasmtime_config_wasm_tail_call_set, (Config *, bool))                                                       \
  X(void, wasmtime_config_wasm_relaxed_simd_set, (Config *, bool))                                                    \
  X(void, wasmtime_config_wasm_exceptions_set, (Config *, bool))                                                      \
  X(void, wasmtime_config_wasm_gc_set, (Config *, bool))                                                              \
  X(void, wasmtime_config_wasm_function_references_set, (Config *, bool))                                             \
  X(void, wasmtime_config_wasm_reference_types_set, (Config *, bool))                                                 \
  X(Engine *, wasm_engine_new_with_config, (Config *))                                                                \
  X(void, wasmtime_engine_increment_epoch, (Engine *))                                                                \
  X(Error *, wasmtime_module_new, (Engine *, const std::uint8_t *, std::size_t, Module **))                           \
  X(Error *, wasmtime_module_serialize, (Module *, Bytes *))                                                          \
  X(Error *, wasmtime_module_deserialize, (Engine *, const std::uint8_t *, std::size_t, Module **))                   \
  X(void, wasmtime_module_delete, (Module *))                                                                         \
  X(Linker *, wasmtime_linker_new, (Engine *))                                                                        \
  X(void, wasmtime_linker_delete, (Linker *))                                                                         \
  X(Error *, wasmtime_linker_define_func_unchecked,                                                                   \
    (Linker *, const char *, std::size_t, const char *, std::size_t, const FuncType *, HostFunc, void *, Finalizer))  \
  X(Error *, wasmtime_linker_instantiate_pre, (const Linker *, const Module *, InstancePre **))                       \
  X(Error *, wasmtime_instance_pre_instantiate, (const InstancePre *, Context *, Instance *, Trap **))                \
  X(void, wasmtime_instance_pre_delete, (InstancePre *))                                                              \
  X(bool, wasmtime_instance_export_get, (Context *, const Instance *, const char *, std::size_t, Extern *))           \
  X(bool, wasmtime_instance_export_nth, (Context *, const Instance *, std::size_t, char **, std::size_t *, Extern *)) \
  X(Store *, wasmtime_store_new, (Engine *, void *, Finalizer))                                                       \
  X(Context *, wasmtime_store_context, (Store *))                                                                     \
  X(void, wasmtime_store_limiter, (Store *, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t))    \
  X(void, wasmtime_store_epoch_deadline_callback, (Store *, EpochCallback, void *, Finalizer))                        \
  X(void, wasmtime_store_delete, (Store *))                                                                           \
  X(void *, wasmtime_context_get_data, (const Context *))                                                             \
  X(void, wasmtime_context_set_epoch_deadline, (Context *, std::uint64_t))                                            \
  X(Context *, wasmtime_caller_context, (Caller *))                                                                   \
  X(Error *, wasmtime_func_call, (Context *, const Func *, const Val *, std::size_t, Val *, std::size_t, Trap **))    \
  X(bool, wasmtime_caller_export_get, (Caller *, const char *, std::size_t, Extern *))                                \
  X(std::uint8_t *, wasmtime_memory_data, (const Context *, const Memory *))                                          \
  X(std::size_t, wasmtime_memory_data_size, (const Context *, const Memory *))                                        \
  X(Error *, wasmtime_memory_grow, (Context *, const Memory *, std::uint64_t, std::uint64_t *))                       \
  X(GlobalType *, wasmtime_global_type, (const Context *, const Global *))                                            \
  X(void, wasmtime_global_get, (Context *, const Global *, Val *))                                                    \
  X(Error *, wasmtime_global_set, (Context *, const Global *, const Val *))                                           \
  X(std::uint8_t, wasm_globaltype_mutability, (const GlobalType *))                                                   \
  X(void, wasm_globaltype_delete, (GlobalType *))                                                                     \
  X(ValType *, wasm_valtype_new, (std::uint8_t))                                                                      \
  X(void, wasm_valtype_vec_new, (ValTypes *, std::size_t, ValType *const *))                                          \
  X(FuncType *, wasm_functype_new, (ValTypes *, ValTypes *))                                                          \
  X(void, wasm_functype_delete, (FuncType *))                                                                         \
  X(Trap *, wasmtime_trap_new, (const char *, std::size_t))                                                           \
  X(bool, wasmtime_trap_code, (const Trap *, std::uint8_t *))                                                         \
  X(void, wasm_trap_message, (const Trap *, Bytes *))                                                                 \
  X(void, wasm_trap_delete, (Trap *))                                                                                 \
  X(Error *, wasmtime_error_new, (const char *))                                                                      \
  X(void, wasmtime_error_message, (const Error *, Bytes *))                                                           \
  X(void, wasmtime_error_delete, (Error *))                                                                           \
  X(void, wasm_byte_vec_delete, (Bytes *))

// The resolved functions, as members with their C names.
struct Api {
#define WEFT_WASMTIME_MEMBER(result, name, arguments) result(*name) arguments;
  WEFT_WASMTIME_CALLS(WEFT_WASMTIME_MEMBER)
#undef WEFT_WASMTIME_MEMBER
};

}  // namespace weft::wasmtime
