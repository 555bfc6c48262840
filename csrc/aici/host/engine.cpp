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

#include "aici/base/limits.h"
#include "aici/host/engine.h"
#include "aici/host/guest_pool.h"
#include "aici/host/host.h"

namespace weft::aici {

namespace {

// Written under the mutex; read-only once `ready` is set.
wasmtime::Api bound{};
std::atomic<bool> ready{false};
std::mutex bind_mutex;

}  // namespace

class EngineTable {
 public:
  // Never destroyed, because the clock thread reads it until the process ends.
  static EngineTable &instance() {
    static EngineTable &table = *new EngineTable;
    return table;
  }

  Engine &of(std::int64_t stack_bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto &engine = engines_[stack_bytes];
    if (!engine) engine.reset(new Engine(stack_bytes));
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
  // The clock continues for this many ticks after the last program, so that a step seldom has to wake it.
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
  std::map<std::int64_t, std::unique_ptr<Engine>> engines_;
  std::condition_variable wake_;
  std::atomic<int> active_{0};
  std::atomic<bool> is_parked_{false};
  std::once_flag started_;
};

EpochTicks::EpochTicks() { EngineTable::instance().enter(); }
EpochTicks::~EpochTicks() { EngineTable::instance().leave(); }

std::string bind_wasmtime(const char *library_path) {
  std::lock_guard<std::mutex> lock(bind_mutex);
  if (ready.load(std::memory_order_acquire)) return "";
  void *library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return dlerror();
  wasmtime::Api resolved{};
#define WEFT_WASMTIME_RESOLVE(result, name, arguments)                              \
  resolved.name = reinterpret_cast<decltype(resolved.name)>(dlsym(library, #name)); \
  if (!resolved.name) return "the function " #name " is missing";
  WEFT_WASMTIME_CALLS(WEFT_WASMTIME_RESOLVE)
#undef WEFT_WASMTIME_RESOLVE
  bound = resolved;
  ready.store(true, std::memory_order_release);
  std::string problem;
  try {
    problem = self_test();
  } catch (const std::exception &error) {
    problem = error.what();
  }
  if (!problem.empty()) ready.store(false, std::memory_order_release);
  return problem;
}

}  // namespace weft::aici

const weft::wasmtime::Api &weft::wasmtime::api() {
  if (!aici::ready.load(std::memory_order_acquire)) throw aici::ProgramError("wasmtime is not bound yet");
  return aici::bound;
}

namespace weft::aici {

Engine &Engine::of(std::int64_t stack_bytes) {
  if (stack_bytes < (16 << 10) || stack_bytes > kMaxStackBytes)
    throw ProgramError("stack_bytes is " + std::to_string(stack_bytes) + "; it can be 16384 to " +
                       std::to_string(kMaxStackBytes));
  return EngineTable::instance().of(stack_bytes);
}

Engine::Engine(std::int64_t stack_bytes) {
  const wasmtime::Api &api = wasmtime::api();
  wasmtime::Config *config = api.wasm_config_new();
  // The order of these calls matters: wasmtime ends the process for an inconsistent configuration. The self-test covers
  // it.
  api.wasmtime_config_wasm_component_model_async_set(config, false);
  api.wasmtime_config_wasm_component_model_set(config, false);
  api.wasmtime_config_wasm_exceptions_set(config, false);
  api.wasmtime_config_wasm_gc_set(config, false);
  api.wasmtime_config_wasm_function_references_set(config, false);
  // Enabled because compilers use its encoding of indirect calls. The audit before compiling refuses every instruction
  // that changes a table, so memory and globals are the whole state of a program.
  api.wasmtime_config_wasm_reference_types_set(config, true);
  api.wasmtime_config_shared_memory_set(config, false);
  api.wasmtime_config_wasm_threads_set(config, false);
  api.wasmtime_config_wasm_memory64_set(config, false);
  api.wasmtime_config_wasm_multi_memory_set(config, false);
  api.wasmtime_config_wasm_tail_call_set(config, false);
  api.wasmtime_config_wasm_relaxed_simd_set(config, false);
  api.wasmtime_config_epoch_interruption_set(config, true);
  // Other libraries in the process may handle SIGSEGV, SIGILL and SIGFPE, so wasmtime must not.
  api.wasmtime_config_signals_based_traps_set(config, false);
  api.wasmtime_config_max_wasm_stack_set(config, static_cast<std::size_t>(stack_bytes));
  engine_ = api.wasm_engine_new_with_config(config);
  linker_ = api.wasmtime_linker_new(engine_);
  for (const HostFunction &function : host_functions()) {
    std::vector<wasmtime::ValType *> params, results;
    for (const char *kind = function.params; *kind; ++kind)
      params.push_back(api.wasm_valtype_new(*kind == 'I' ? wasmtime::kI64 : wasmtime::kI32));
    if (function.returns) results.push_back(api.wasm_valtype_new(wasmtime::kI32));
    wasmtime::ValTypes param_types, result_types;
    api.wasm_valtype_vec_new(&param_types, params.size(), params.data());
    api.wasm_valtype_vec_new(&result_types, results.size(), results.data());
    wasmtime::FuncType *type = api.wasm_functype_new(&param_types, &result_types);
    wasmtime::Error *error =
        api.wasmtime_linker_define_func_unchecked(linker_, function.module, std::strlen(function.module), function.name,
                                                  std::strlen(function.name), type, function.call, nullptr, nullptr);
    api.wasm_functype_delete(type);
    check_error(error, function.name);
  }
}

std::string Engine::compile(std::string_view module) {
  const wasmtime::Api &api = wasmtime::api();
  wasmtime::Module *compiled = nullptr;
  check_error(
      api.wasmtime_module_new(engine_, reinterpret_cast<const std::uint8_t *>(module.data()), module.size(), &compiled),
      "the module does not compile");
  wasmtime::Bytes bytes{};
  wasmtime::Error *error = api.wasmtime_module_serialize(compiled, &bytes);
  api.wasmtime_module_delete(compiled);
  check_error(error, "the module can't be written out");
  std::string artefact(bytes.data, bytes.size);
  api.wasm_byte_vec_delete(&bytes);
  return artefact;
}

wasmtime::Module *Engine::load(std::string_view artefact) {
  wasmtime::Module *module = nullptr;
  check_error(wasmtime::api().wasmtime_module_deserialize(
                  engine_, reinterpret_cast<const std::uint8_t *>(artefact.data()), artefact.size(), &module),
              "the compiled module can't be loaded");
  return module;
}

wasmtime::InstancePre *Engine::link(const wasmtime::Module *module) {
  wasmtime::InstancePre *linked = nullptr;
  check_error(wasmtime::api().wasmtime_linker_instantiate_pre(linker_, module, &linked),
              "the module imports what programs don't have");
  return linked;
}

std::string take_message(wasmtime::Error *error) {
  wasmtime::Bytes bytes{};
  bound.wasmtime_error_message(error, &bytes);
  std::string text(bytes.data, bytes.size);
  bound.wasm_byte_vec_delete(&bytes);
  bound.wasmtime_error_delete(error);
  return text;
}

std::string take_message(wasmtime::Trap *trap) {
  wasmtime::Bytes bytes{};
  bound.wasm_trap_message(trap, &bytes);
  std::string text(bytes.data, bytes.size);
  while (!text.empty() && text.back() == '\0') text.pop_back();
  bound.wasm_byte_vec_delete(&bytes);
  bound.wasm_trap_delete(trap);
  return text;
}

void check_error(wasmtime::Error *error, const char *what) {
  if (error) throw ProgramError(std::string(what) + ": " + take_message(error));
}

}  // namespace weft::aici
