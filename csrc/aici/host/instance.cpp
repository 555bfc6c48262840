#include "aici/host/instance.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "aici/base/error.h"

namespace weft {
namespace {

const char *meaning(std::uint8_t code) {
  switch (code) {
    case wasm::kMemoryOutOfBounds:
      return "it accessed memory that it does not have";
    case wasm::kTableOutOfBounds:
      return "it used a table's element that there is none";
    case wasm::kIndirectCallToNull:
      return "it called a function that there is none";
    case wasm::kBadSignature:
      return "it called a function of another type";
    case wasm::kIntegerOverflow:
      return "an integer overflowed";
    case wasm::kIntegerDivisionByZero:
      return "it divided by zero";
    case wasm::kBadConversionToInteger:
      return "it converted a number that is no integer";
    case wasm::kUnreachable:
      return "it reached an instruction that ends it (a panic or an abort)";
    default:
      return nullptr;
  }
}

}  // namespace

WasmInstance::~WasmInstance() { delete_store(); }

void WasmInstance::delete_store() {
  if (store_) wasm_api().wasmtime_store_delete(store_);
  store_ = nullptr;
}

// The ticks are time that passes; when they are used up, the thread's own time decides.
wasm::Error *WasmInstance::out_of_time(wasm::Context *, void *data, std::uint64_t *delta, std::uint8_t *kind) {
  auto &self = *static_cast<WasmInstance *>(data);
  const std::int64_t left_ns = self.host.time.left_ns();
  if (left_ns > 0) {
    *delta = static_cast<std::uint64_t>(left_ns / 1000000 + 1);
    *kind = 0;  // go on
    return nullptr;
  }
  self.host.problem = self.host.time.problem();
  return wasm_api().wasmtime_error_new("out of time");
}

void WasmInstance::set_deadline() {
  const std::int64_t left_ms = host.time.left_ns() / 1000000;
  wasm_api().wasmtime_context_set_epoch_deadline(context_,
                                                 static_cast<std::uint64_t>(std::max<std::int64_t>(left_ms, 0) + 1));
}

void WasmInstance::instantiate() {
  const wasm::Api &api = wasm_api();
  const WasmLimits &limits = host.program->limits;
  delete_store();
  globals_.clear();
  store_ = api.wasmtime_store_new(host.program->engine.native(), &host, nullptr);
  context_ = api.wasmtime_store_context(store_);
  api.wasmtime_store_limiter(store_, limits.memory_bytes, limits.table_elements, 1, 8, 1);
  api.wasmtime_store_epoch_deadline_callback(store_, out_of_time, this, nullptr);
  set_deadline();
  wasm::Trap *trap = nullptr;
  host.begin_call("");
  const WasmTicking ticking;
  if (wasm::Error *error = api.wasmtime_instance_pre_instantiate(host.program->linked, context_, &instance_, &trap)) {
    const std::string text = wasm_text(error);
    if (text.find("memory minimum size") != std::string::npos)
      fail("it needs more memory than " + std::to_string(limits.memory_bytes) +
           " bytes; raise memory_bytes to allow it");
    if (text.find("table minimum size") != std::string::npos)
      fail("it needs a table of more than " + std::to_string(limits.table_elements) +
           " elements; raise table_elements to allow it");
    fail(text);
  }
  if (trap) fail(text_of(trap));

  wasm::Extern found{};
  if (!api.wasmtime_instance_export_get(context_, &instance_, "memory", 6, &found) || found.kind != wasm::kExternMemory)
    fail("it exports no memory");
  memory_ = found.of.memory;
  ++num_memories_;
  char *name = nullptr;
  std::size_t length = 0;
  for (std::size_t i = 0; api.wasmtime_instance_export_nth(context_, &instance_, i, &name, &length, &found); ++i) {
    if (found.kind != wasm::kExternGlobal) continue;
    wasm::GlobalType *type = api.wasmtime_global_type(context_, &found.of.global);
    const bool is_mutable = api.wasm_globaltype_mutability(type) == 1;
    api.wasm_globaltype_delete(type);
    if (is_mutable) globals_.push_back(found.of.global);
  }
  init_prompt_ = function("aici_init_prompt");
  mid_process_ = function("aici_mid_process");
}

wasm::Func WasmInstance::function(const char *name) {
  wasm::Extern found{};
  if (!wasm_api().wasmtime_instance_export_get(context_, &instance_, name, std::strlen(name), &found) ||
      found.kind != wasm::kExternFunc)
    fail(std::string("it exports no function ") + name);
  return found.of.func;
}

void WasmInstance::create() {
  wasm::Extern reactor{};
  // Sets up a C library where the module was linked as a library.
  if (wasm_api().wasmtime_instance_export_get(context_, &instance_, "_initialize", 11, &reactor) &&
      reactor.kind == wasm::kExternFunc)
    call(reactor.of.func, nullptr, nullptr, "_initialize");
  call(function("aici_init"), nullptr, nullptr, "aici_init");
  wasm::Val result{};
  call(function("aici_create"), nullptr, &result, "aici_create");
  if (result.kind != wasm::kI32) fail("its aici_create returns no i32");
  handle = result.of.i32;
}

const std::string &WasmInstance::init_prompt(std::string argument) {
  return ask(init_prompt_, std::move(argument), "aici_init_prompt");
}
const std::string &WasmInstance::mid_process(std::string argument) {
  return ask(mid_process_, std::move(argument), "aici_mid_process");
}

const std::string &WasmInstance::ask(const wasm::Func &function, std::string argument, const char *name) {
  host.begin_call(std::move(argument));
  wasm::Val value{};
  value.kind = wasm::kI32;
  value.of.i32 = handle;
  call(function, &value, nullptr, name);
  if (!host.has_result) fail(std::string(name) + " gave no result (aici_host_return_process_result)");
  return host.result;
}

void WasmInstance::call(const wasm::Func &function, const wasm::Val *argument, wasm::Val *result, const char *name) {
  host.problem.clear();
  set_deadline();
  const WasmTicking ticking;
  wasm::Trap *trap = nullptr;
  wasm::Error *error =
      wasm_api().wasmtime_func_call(context_, &function, argument, argument ? 1 : 0, result, result ? 1 : 0, &trap);
  if (error) fail(std::string("in ") + name + ": " + wasm_text(error));
  if (trap) fail(std::string("in ") + name + ": " + text_of(trap));
}

// What the host knows of the cause says more than the trap.
void WasmInstance::fail(std::string problem) {
  if (!host.problem.empty()) throw WasmError(host.problem);
  const std::size_t kept = std::min<std::size_t>({host.log_bytes, host.log.size(), 200});
  std::string words = host.log.substr(host.log.size() - kept);
  while (!words.empty() && words.back() == '\n') words.pop_back();
  throw WasmError("the program failed: " + problem + (words.empty() ? "" : "; its last words: " + words));
}

std::string WasmInstance::text_of(wasm::Trap *trap) const {
  std::uint8_t code = 255;
  const bool has_code = wasm_api().wasmtime_trap_code(trap, &code);
  const std::string text = wasm_text(trap);
  if (has_code && code == wasm::kStackOverflow)
    return "its stack is over the limit of " + std::to_string(host.program->limits.stack_bytes) +
           " bytes; raise stack_bytes to allow it";
  const char *known = has_code ? meaning(code) : nullptr;
  return known ? known : text;
}

std::uint8_t *WasmInstance::memory() const { return wasm_api().wasmtime_memory_data(context_, &memory_); }
std::size_t WasmInstance::memory_size() const { return wasm_api().wasmtime_memory_data_size(context_, &memory_); }

void WasmInstance::grow_memory(std::size_t size) {
  constexpr std::size_t kPage = 65536;
  std::uint64_t before = 0;
  wasm_check(wasm_api().wasmtime_memory_grow(context_, &memory_, (size - memory_size()) / kPage, &before),
             "a program's memory can't be copied");
}

std::vector<wasm::Val> WasmInstance::globals() const {
  std::vector<wasm::Val> values(globals_.size());
  for (std::size_t i = 0; i < globals_.size(); ++i) {
    wasm_api().wasmtime_global_get(context_, &globals_[i], &values[i]);
    if (values[i].kind > wasm::kV128)
      throw WasmError("the program has a global that is a reference, which can't be copied");
  }
  return values;
}

void WasmInstance::set_globals(const std::vector<wasm::Val> &values) {
  for (std::size_t i = 0; i < globals_.size(); ++i)
    wasm_check(wasm_api().wasmtime_global_set(context_, &globals_[i], &values[i]), "a program's global can't be set");
}

}  // namespace weft
