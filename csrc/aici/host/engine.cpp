#include "aici/host/engine.h"

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "aici/base/error.h"
#include "aici/host/guest_pool.h"
#include "aici/host/host.h"
#include "aici/host/self_test.h"

namespace weft {

// Written once under the mutex, read-only after `ready`.
namespace {
wasm::Api bound{};
std::atomic<bool> ready{false};
std::mutex bind_mutex;
}  // namespace

class EngineTable {
 public:
  // Never destroyed: the ticker goes over it as long as the process lives.
  static EngineTable &instance() {
    static EngineTable &table = *new EngineTable;
    return table;
  }

  WasmEngine &of(std::int64_t stack_bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto &engine = engines_[stack_bytes];
    if (!engine) engine.reset(new WasmEngine(stack_bytes));
    return *engine;
  }

  void enter() {
    if (active_.fetch_add(1) == 0 && is_parked_.load()) {
      std::lock_guard<std::mutex> lock(ticker_mutex_);
      wake_.notify_one();
    }
    std::call_once(started_, [this] { std::thread([this] { tick(); }).detach(); });
  }
  void leave() { active_.fetch_sub(1); }

 private:
  // Goes on for a while when no program runs, so that it is not woken for every step.
  static constexpr int kIdleTicks = 50;

  [[noreturn]] void tick() {
    pthread_setname_np(pthread_self(), "weft-wasm-clock");
    for (int idle = 0;; idle = active_.load() ? 0 : idle + 1) {
      if (idle > kIdleTicks) {
        std::unique_lock<std::mutex> lock(ticker_mutex_);
        is_parked_.store(true);
        wake_.wait(lock, [this] { return active_.load() > 0; });
        is_parked_.store(false);
      }
      const timespec millisecond{0, 1000000};
      nanosleep(&millisecond, nullptr);
      std::lock_guard<std::mutex> lock(mutex_);
      for (const auto &[size, engine] : engines_)
        if (engine) bound.wasmtime_engine_increment_epoch(engine->native());
    }
  }

  std::mutex mutex_, ticker_mutex_;
  std::map<std::int64_t, std::unique_ptr<WasmEngine>> engines_;
  std::condition_variable wake_;
  std::atomic<int> active_{0};
  std::atomic<bool> is_parked_{false};
  std::once_flag started_;
};

WasmTicking::WasmTicking() { EngineTable::instance().enter(); }
WasmTicking::~WasmTicking() { EngineTable::instance().leave(); }

std::string wasm_bind(const char *library_path) {
  std::lock_guard<std::mutex> lock(bind_mutex);
  if (ready.load(std::memory_order_acquire)) return "";
  void *library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return dlerror();
  wasm::Api found{};
#define WEFT_WASM_RESOLVE(result, name, arguments)                            \
  found.name = reinterpret_cast<decltype(found.name)>(dlsym(library, #name)); \
  if (!found.name) return "the function " #name " is missing";
  WEFT_WASM_CALLS(WEFT_WASM_RESOLVE)
#undef WEFT_WASM_RESOLVE
  bound = found;
  ready.store(true, std::memory_order_release);
  std::string problem;
  try {
    problem = wasm_self_test();
  } catch (const std::exception &error) {
    problem = error.what();
  }
  if (!problem.empty()) ready.store(false, std::memory_order_release);
  return problem;
}

const wasm::Api &wasm_api() {
  if (!ready.load(std::memory_order_acquire)) throw WasmError("wasm_bind has not succeeded yet");
  return bound;
}

WasmEngine &WasmEngine::of(std::int64_t stack_bytes) {
  if (stack_bytes < (16 << 10) || stack_bytes > kMaxStackBytes)
    throw WasmError("stack_bytes is " + std::to_string(stack_bytes) + "; it can be 16384 to " +
                    std::to_string(kMaxStackBytes));
  return EngineTable::instance().of(stack_bytes);
}

WasmEngine::WasmEngine(std::int64_t stack_bytes) {
  const wasm::Api &api = wasm_api();
  wasm::Config *config = api.wasm_config_new();
  // An inconsistent configuration ends the process; the order is part of what the self-test tries.
  api.wasmtime_config_wasm_component_model_async_set(config, false);
  api.wasmtime_config_wasm_component_model_set(config, false);
  api.wasmtime_config_wasm_exceptions_set(config, false);
  api.wasmtime_config_wasm_gc_set(config, false);
  api.wasmtime_config_wasm_function_references_set(config, false);
  // Compilers write calls through a table as this extension does; that no program changes a table, and that memory and
  // globals so are all of its state, is checked before it is compiled.
  api.wasmtime_config_wasm_reference_types_set(config, true);
  api.wasmtime_config_shared_memory_set(config, false);
  api.wasmtime_config_wasm_threads_set(config, false);
  api.wasmtime_config_wasm_memory64_set(config, false);
  api.wasmtime_config_wasm_multi_memory_set(config, false);
  api.wasmtime_config_wasm_tail_call_set(config, false);
  api.wasmtime_config_wasm_relaxed_simd_set(config, false);
  api.wasmtime_config_epoch_interruption_set(config, true);
  // No handlers of SIGSEGV, SIGILL and SIGFPE: the process has others that want them.
  api.wasmtime_config_signals_based_traps_set(config, false);
  api.wasmtime_config_max_wasm_stack_set(config, static_cast<std::size_t>(stack_bytes));
  engine_ = api.wasm_engine_new_with_config(config);
  linker_ = api.wasmtime_linker_new(engine_);
  for (const HostFunction &function : host_functions()) {
    std::vector<wasm::ValType *> params, results;
    for (const char *kind = function.params; *kind; ++kind)
      params.push_back(api.wasm_valtype_new(*kind == 'I' ? wasm::kI64 : wasm::kI32));
    if (function.returns) results.push_back(api.wasm_valtype_new(wasm::kI32));
    wasm::ValTypes param_types, result_types;
    api.wasm_valtype_vec_new(&param_types, params.size(), params.data());
    api.wasm_valtype_vec_new(&result_types, results.size(), results.data());
    wasm::FuncType *type = api.wasm_functype_new(&param_types, &result_types);
    wasm::Error *error =
        api.wasmtime_linker_define_func_unchecked(linker_, function.module, std::strlen(function.module), function.name,
                                                  std::strlen(function.name), type, function.call, nullptr, nullptr);
    api.wasm_functype_delete(type);
    wasm_check(error, function.name);
  }
}

std::string WasmEngine::compile(std::string_view module) {
  const wasm::Api &api = wasm_api();
  wasm::Module *compiled = nullptr;
  wasm_check(
      api.wasmtime_module_new(engine_, reinterpret_cast<const std::uint8_t *>(module.data()), module.size(), &compiled),
      "the module does not compile");
  wasm::Bytes bytes{};
  wasm::Error *error = api.wasmtime_module_serialize(compiled, &bytes);
  api.wasmtime_module_delete(compiled);
  wasm_check(error, "the module can't be written out");
  std::string artefact(bytes.data, bytes.size);
  api.wasm_byte_vec_delete(&bytes);
  return artefact;
}

wasm::Module *WasmEngine::load(std::string_view artefact) {
  wasm::Module *module = nullptr;
  wasm_check(wasm_api().wasmtime_module_deserialize(engine_, reinterpret_cast<const std::uint8_t *>(artefact.data()),
                                                    artefact.size(), &module),
             "the compiled module can't be loaded");
  return module;
}

wasm::InstancePre *WasmEngine::link(const wasm::Module *module) {
  wasm::InstancePre *linked = nullptr;
  wasm_check(wasm_api().wasmtime_linker_instantiate_pre(linker_, module, &linked),
             "the module imports what programs don't have");
  return linked;
}

std::string wasm_text(wasm::Error *error) {
  wasm::Bytes bytes{};
  bound.wasmtime_error_message(error, &bytes);
  std::string text(bytes.data, bytes.size);
  bound.wasm_byte_vec_delete(&bytes);
  bound.wasmtime_error_delete(error);
  return text;
}

std::string wasm_text(wasm::Trap *trap) {
  wasm::Bytes bytes{};
  bound.wasm_trap_message(trap, &bytes);
  std::string text(bytes.data, bytes.size);
  while (!text.empty() && text.back() == '\0') text.pop_back();
  bound.wasm_byte_vec_delete(&bytes);
  bound.wasm_trap_delete(trap);
  return text;
}

void wasm_check(wasm::Error *error, const char *what) {
  if (error) throw WasmError(std::string(what) + ": " + wasm_text(error));
}

}  // namespace weft
