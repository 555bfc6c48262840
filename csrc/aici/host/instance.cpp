#include "aici/host/instance.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "aici/base/limits.h"

namespace weft::aici {
namespace {

const char *meaning(std::uint8_t code) {
  switch (code) {
    case wasmtime::kMemoryOutOfBounds:
      return "it accessed memory that it does not have";
    case wasmtime::kTableOutOfBounds:
      return "it used a table's element that there is none";
    case wasmtime::kIndirectCallToNull:
      return "it called a function that there is none";
    case wasmtime::kBadSignature:
      return "it called a function of another type";
    case wasmtime::kIntegerOverflow:
      return "an integer overflowed";
    case wasmtime::kIntegerDivisionByZero:
      return "it divided by zero";
    case wasmtime::kBadConversionToInteger:
      return "it converted a number that is no integer";
    case wasmtime::kUnreachable:
      return "it reached an instruction that ends it (a panic or an abort)";
    default:
      return nullptr;
  }
}

}  // namespace

Instance::~Instance() { delete_store(); }

void Instance::delete_store() {
  if (store_) wasmtime::api().wasmtime_store_delete(store_);
  store_ = nullptr;
}

// wasmtime calls this at the epoch deadline. Epochs count wall-clock time, so this checks the thread's CPU time and
// extends the deadline if the program has time left.
wasmtime::Error *Instance::out_of_time(wasmtime::Context *, void *data, std::uint64_t *delta, std::uint8_t *kind) {
  auto &self = *static_cast<Instance *>(data);
  const std::int64_t left_ns = self.host.time.left_ns();
  if (left_ns > 0) {
    *delta = static_cast<std::uint64_t>(left_ns / 1000000 + 1);
    *kind = 0;  // continue
    return nullptr;
  }
  self.host.problem = self.host.time.problem();
  return wasmtime::api().wasmtime_error_new("out of time");
}

void Instance::set_deadline() {
  const std::int64_t left_ms = host.time.left_ns() / 1000000;
  wasmtime::api().wasmtime_context_set_epoch_deadline(
      context_, static_cast<std::uint64_t>(std::max<std::int64_t>(left_ms, 0) + 1));
}

void Instance::instantiate() {
  const wasmtime::Api &api = wasmtime::api();
  const Limits &limits = host.program->limits;
  delete_store();
  globals_.clear();
  store_ = api.wasmtime_store_new(host.program->engine.native(), &host, nullptr);
  context_ = api.wasmtime_store_context(store_);
  api.wasmtime_store_limiter(store_, limits.memory_bytes, limits.table_elements, 1, 8, 1);
  api.wasmtime_store_epoch_deadline_callback(store_, out_of_time, this, nullptr);
  set_deadline();
  wasmtime::Trap *trap = nullptr;
  host.begin_call("");
  const EpochTicks ticking;
  if (wasmtime::Error *error =
          api.wasmtime_instance_pre_instantiate(host.program->linked, context_, &instance_, &trap)) {
    const std::string text = take_message(error);
    if (text.find("memory minimum size") != std::string::npos)
      fail("it needs more memory than " + std::to_string(limits.memory_bytes) +
           " bytes; raise memory_bytes to allow it");
    if (text.find("table minimum size") != std::string::npos)
      fail("it needs a table of more than " + std::to_string(limits.table_elements) +
           " elements; raise table_elements to allow it");
    fail(text);
  }
  if (trap) fail(text_of(trap));

  wasmtime::Extern item{};
  if (!api.wasmtime_instance_export_get(context_, &instance_, "memory", 6, &item) ||
      item.kind != wasmtime::kExternMemory)
    fail("it exports no memory");
  memory_ = item.of.memory;
  ++num_memories_;
  char *name = nullptr;
  std::size_t length = 0;
  for (std::size_t i = 0; api.wasmtime_instance_export_nth(context_, &instance_, i, &name, &length, &item); ++i) {
    if (item.kind != wasmtime::kExternGlobal) continue;
    wasmtime::GlobalType *type = api.wasmtime_global_type(context_, &item.of.global);
    const bool is_mutable = api.wasm_globaltype_mutability(type) == 1;
    api.wasm_globaltype_delete(type);
    if (is_mutable) globals_.push_back(item.of.global);
  }
  init_prompt_ = function("aici_init_prompt");
  mid_process_ = function("aici_mid_process");
}

wasmtime::Func Instance::function(const char *name) {
  wasmtime::Extern item{};
  if (!wasmtime::api().wasmtime_instance_export_get(context_, &instance_, name, std::strlen(name), &item) ||
      item.kind != wasmtime::kExternFunc)
    fail(std::string("it exports no function ") + name);
  return item.of.func;
}

void Instance::create() {
  wasmtime::Extern reactor{};
  // In a module linked as a library, `_initialize` sets up the C library.
  if (wasmtime::api().wasmtime_instance_export_get(context_, &instance_, "_initialize", 11, &reactor) &&
      reactor.kind == wasmtime::kExternFunc)
    call(reactor.of.func, nullptr, nullptr, "_initialize");
  call(function("aici_init"), nullptr, nullptr, "aici_init");
  wasmtime::Val result{};
  call(function("aici_create"), nullptr, &result, "aici_create");
  if (result.kind != wasmtime::kI32) fail("its aici_create returns no i32");
  handle = result.of.i32;
}

const std::string &Instance::init_prompt(std::string argument) {
  return ask(init_prompt_, std::move(argument), "aici_init_prompt");
}
const std::string &Instance::mid_process(std::string argument) {
  return ask(mid_process_, std::move(argument), "aici_mid_process");
}

const std::string &Instance::ask(const wasmtime::Func &function, std::string argument, const char *name) {
  host.begin_call(std::move(argument));
  wasmtime::Val value{};
  value.kind = wasmtime::kI32;
  value.of.i32 = handle;
  call(function, &value, nullptr, name);
  if (!host.has_result) fail(std::string(name) + " gave no result (aici_host_return_process_result)");
  return host.result;
}

void Instance::call(const wasmtime::Func &function, const wasmtime::Val *argument, wasmtime::Val *result,
                    const char *name) {
  host.problem.clear();
  set_deadline();
  const EpochTicks ticking;
  wasmtime::Trap *trap = nullptr;
  wasmtime::Error *error = wasmtime::api().wasmtime_func_call(context_, &function, argument, argument ? 1 : 0, result,
                                                              result ? 1 : 0, &trap);
  if (error) fail(std::string("in ") + name + ": " + take_message(error));
  if (trap) fail(std::string("in ") + name + ": " + text_of(trap));
}

void Instance::fail(std::string problem) {
  // If a host function failed, `host.problem` is more specific than the trap.
  if (!host.problem.empty()) throw ProgramError(host.problem);
  constexpr std::size_t kMaxWords = 200;  // bytes
  const std::size_t count = std::min<std::size_t>({host.log_bytes, host.log.size(), kMaxWords});
  std::string words = host.log.substr(host.log.size() - count);
  while (!words.empty() && words.back() == '\n') words.pop_back();
  throw ProgramError("the program failed: " + problem + (words.empty() ? "" : "; its last words: " + words));
}

std::string Instance::text_of(wasmtime::Trap *trap) const {
  std::uint8_t code = 255;
  const bool has_code = wasmtime::api().wasmtime_trap_code(trap, &code);
  const std::string text = take_message(trap);
  if (has_code && code == wasmtime::kStackOverflow)
    return "its stack is over the limit of " + std::to_string(host.program->limits.stack_bytes) +
           " bytes; raise stack_bytes to allow it";
  const char *known = has_code ? meaning(code) : nullptr;
  return known ? known : text;
}

std::uint8_t *Instance::memory() const { return wasmtime::api().wasmtime_memory_data(context_, &memory_); }
std::size_t Instance::memory_size() const { return wasmtime::api().wasmtime_memory_data_size(context_, &memory_); }

void Instance::grow_memory(std::size_t size) {
  constexpr std::size_t kPage = 65536;
  std::uint64_t before = 0;
  check_error(wasmtime::api().wasmtime_memory_grow(context_, &memory_, (size - memory_size()) / kPage, &before),
              "a program's memory can't be copied");
}

std::vector<wasmtime::Val> Instance::globals() const {
  std::vector<wasmtime::Val> values(globals_.size());
  for (std::size_t i = 0; i < globals_.size(); ++i) {
    wasmtime::api().wasmtime_global_get(context_, &globals_[i], &values[i]);
    if (values[i].kind > wasmtime::kV128)
      throw ProgramError("the program has a global that is a reference, which can't be copied");
  }
  return values;
}

void Instance::set_globals(const std::vector<wasmtime::Val> &values) {
  for (std::size_t i = 0; i < globals_.size(); ++i)
    check_error(wasmtime::api().wasmtime_global_set(context_, &globals_[i], &values[i]),
                "a program's global can't be set");
}

}  // namespace weft::aici
