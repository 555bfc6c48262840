#include "aici/host/host.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "aici/base/limits.h"

namespace weft::aici {
namespace {

using wasmtime::Caller;
using wasmtime::Raw;
using wasmtime::Trap;

// The context of one call of a host function: the host's data, and checked access to the program's memory.
class Call {
 public:
  explicit Call(Caller *caller)
      : context_(wasmtime::api().wasmtime_caller_context(caller)),
        host(*static_cast<Host *>(wasmtime::api().wasmtime_context_get_data(context_))) {
    wasmtime::Extern memory{};
    if (wasmtime::api().wasmtime_caller_export_get(caller, "memory", 6, &memory) &&
        memory.kind == wasmtime::kExternMemory) {
      data_ = wasmtime::api().wasmtime_memory_data(context_, &memory.of.memory);
      size_ = wasmtime::api().wasmtime_memory_data_size(context_, &memory.of.memory);
    }
  }

  // Returns a pointer to `count` bytes of the program's memory. Throws ProgramError if they are out of bounds.
  std::uint8_t *at(std::int32_t pointer, std::uint64_t count) const {
    const std::uint64_t begin = static_cast<std::uint32_t>(pointer);
    if (begin + count > size_) throw ProgramError("the program gave a pointer that leaves its memory");
    return data_ + begin;
  }
  // Returns a text in the program's memory. Throws ProgramError if it is out of bounds or longer than `result_bytes`.
  std::string_view text(std::int32_t pointer, std::int32_t size, const char *what) const {
    const std::uint64_t count = static_cast<std::uint32_t>(size);
    const std::uint8_t *begin = at(pointer, count);
    if (count > static_cast<std::uint64_t>(host.program->limits.result_bytes))
      throw ProgramError(std::string(what) + " has " + std::to_string(count) + " bytes, more than " +
                         std::to_string(host.program->limits.result_bytes) + "; raise result_bytes to allow it");
    return {reinterpret_cast<const char *>(begin), count};
  }
  void store32(std::int32_t pointer, std::uint32_t value) const { std::memcpy(at(pointer, 4), &value, 4); }
  std::uint32_t load32(std::uint64_t pointer) const {
    if (pointer + 4 > size_) throw ProgramError("the program gave a pointer that leaves its memory");
    std::uint32_t value;
    std::memcpy(&value, data_ + pointer, 4);
    return value;
  }

 private:
  wasmtime::Context *context_;
  std::uint8_t *data_ = nullptr;
  std::uint64_t size_ = 0;

 public:
  Host &host;
};

// Wraps `Body` as a host function. The program receives its result; an exception becomes a trap.
template <std::int32_t (*Body)(const Call &, const Raw *)>
Trap *host_function(void *, Caller *caller, Raw *args, std::size_t count) {
  const Call call(caller);
  try {
    const std::int32_t result = Body(call, args);
    if (count > 0) args[0].i64 = static_cast<std::uint32_t>(result);
    return nullptr;
  } catch (const std::exception &error) {
    call.host.problem = error.what();
  }
  return wasmtime::api().wasmtime_trap_new(call.host.problem.data(), call.host.problem.size());
}

enum Blob : std::int32_t { kModuleArg = 1, kTokenize = 2, kTokens = 3, kProcessArg = 4, kStorage = 5, kTrie = 100 };

std::string_view blob_of(const Host &host, std::int32_t blob) {
  switch (blob) {
    case kModuleArg:
      return host.argument;
    case kTokenize:
      return host.tokenized;
    case kTokens:
      return {};
    case kProcessArg:
      return host.call_argument;
    case kStorage:
      return host.storage_reply;
    case kTrie:
      return host.program->trie;
    default:
      throw ProgramError("the program asked for blob " + std::to_string(blob) + ", which there is none");
  }
}

std::int32_t read_blob(const Call &call, const Raw *args) {
  const std::string_view blob = blob_of(call.host, args[0].i32);
  const std::uint64_t count = std::min<std::uint64_t>(static_cast<std::uint32_t>(args[2].i32), blob.size());
  if (count > 0) std::memcpy(call.at(args[1].i32, count), blob.data(), count);
  return static_cast<std::int32_t>(blob.size());
}

template <std::int32_t kValue>
std::int32_t constant(const Call &, const Raw *) {
  return kValue;
}

std::int32_t tokenize(const Call &call, const Raw *args) {
  const std::vector<std::int32_t> tokens = call.host.program->tokenize(
      call.text(args[0].i32, args[1].i32, "a text to tokenize"), [&call] { call.host.time.check(); });
  call.host.tokenized.assign(reinterpret_cast<const char *>(tokens.data()), tokens.size() * sizeof(std::int32_t));
  return kTokenize;
}

std::int32_t return_logit_bias(const Call &call, const Raw *args) {
  Host &host = call.host;
  const auto words = static_cast<std::size_t>(host.program->words());
  const std::uint8_t *from = call.at(args[0].i32, 4 * words);
  if (host.has_mask) throw ProgramError("the program returned two masks in one step");
  host.mask.resize(words);
  std::memcpy(host.mask.data(), from, 4 * words);
  host.has_mask = true;
  return static_cast<std::int32_t>(host.ticket);
}

std::int32_t return_process_result(const Call &call, const Raw *args) {
  call.host.result = call.text(args[0].i32, args[1].i32, "the program's result");
  call.host.has_result = true;
  return 0;
}

std::int32_t storage_cmd(const Call &call, const Raw *args) {
  const std::string_view text = call.text(args[0].i32, args[1].i32, "a storage command");
  Host &host = call.host;
  if (host.is_muted)
    host.storage_reply = R"({"VariableMissing":{}})";
  else
    host.storage_reply =
        host.variables->command(text, host.program->limits, host.writes, {host.sequence, host.num_tokens});
  return kStorage;
}

std::int32_t self_seq_id(const Call &call, const Raw *) { return static_cast<std::int32_t>(call.host.sequence); }
std::int32_t eos_token(const Call &call, const Raw *) { return call.host.program->end_tokens.front(); }

// Returns whether weft has an optional feature of AICI. It has forced tokens, but neither forks nor backtracking.
std::int32_t get_config(const Call &call, const Raw *args) {
  return call.text(args[0].i32, args[1].i32, "a configuration's name") == "ff_tokens";
}

std::int32_t stop(const Call &, const Raw *) { throw ProgramError("the program stopped itself"); }

// WASI's error numbers for "bad file descriptor" and "not permitted".
constexpr std::int32_t kBadFile = 8, kNotPermitted = 63;

constexpr std::uint64_t kVectorsBetweenChecks = 4096;

std::int32_t clock_time_get(const Call &call, const Raw *args) {
  constexpr std::int32_t kMonotonic = 1;  // the monotonic clock, which always reads 0
  if (args[0].i32 != kMonotonic) return kNotPermitted;
  std::memset(call.at(args[2].i32, 8), 0, 8);
  return 0;
}

std::int32_t fd_fdstat_get(const Call &call, const Raw *args) {
  constexpr std::uint8_t kCharacterDevice = 2;
  if (args[0].i32 < 0 || args[0].i32 > 2) return kBadFile;
  std::uint8_t *stat = call.at(args[1].i32, 24);
  std::memset(stat, 0, 24);
  stat[0] = kCharacterDevice;
  return 0;
}

std::int32_t fd_write(const Call &call, const Raw *args) {
  Host &host = call.host;
  if (args[0].i32 != 1 && args[0].i32 != 2) return kBadFile;
  const std::uint64_t vectors = static_cast<std::uint32_t>(args[1].i32),
                      count = static_cast<std::uint32_t>(args[2].i32);
  call.at(args[1].i32, 8 * count);
  const auto limit = static_cast<std::uint64_t>(host.program->limits.log_bytes);
  std::uint32_t num_written = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i % kVectorsBetweenChecks == kVectorsBetweenChecks - 1) host.time.check();
    const std::uint32_t size = call.load32(vectors + 8 * i + 4);
    const std::uint8_t *from = call.at(static_cast<std::int32_t>(call.load32(vectors + 8 * i)), size);
    if (host.log_bytes + size > limit)
      throw ProgramError("the program wrote more than " + std::to_string(limit) +
                         " bytes to its log in one step; raise log_bytes to allow it");
    host.log_bytes += size;
    num_written += size;
    if (!host.is_muted) host.log.append(reinterpret_cast<const char *>(from), size);
  }
  if (host.log.size() > 2 * limit) {  // not at every write, because erasing moves the whole log
    host.log_dropped += host.log.size() - limit;
    host.log.erase(0, host.log.size() - limit);
  }
  call.store32(args[3].i32, num_written);
  return 0;
}

std::int32_t two_zero_sizes(const Call &call, const Raw *args) {
  call.store32(args[0].i32, 0);
  call.store32(args[1].i32, 0);
  return 0;
}

}  // namespace

const std::vector<HostFunction> &host_functions() {
  static constexpr const char *kEnv = "env", *kWasi = "wasi_snapshot_preview1";
  // Never destroyed, because engines keep pointers to the names.
  static const auto *functions = [] {
    constexpr auto kRefuse = host_function<constant<kBadFile>>;
    auto *made = new std::vector<HostFunction>{
        {kEnv, "aici_host_read_blob", "iii", true, host_function<read_blob>},
        {kEnv, "aici_host_token_trie", "", true, host_function<constant<kTrie>>},
        {kEnv, "aici_host_module_arg", "", true, host_function<constant<kModuleArg>>},
        {kEnv, "aici_host_process_arg", "", true, host_function<constant<kProcessArg>>},
        {kEnv, "aici_host_tokens", "", true, host_function<constant<kTokens>>},
        {kEnv, "aici_host_tokenize", "ii", true, host_function<tokenize>},
        {kEnv, "aici_host_return_logit_bias", "i", true, host_function<return_logit_bias>},
        {kEnv, "aici_host_return_process_result", "ii", false, host_function<return_process_result>},
        {kEnv, "aici_host_storage_cmd", "ii", true, host_function<storage_cmd>},
        {kEnv, "aici_host_self_seq_id", "", true, host_function<self_seq_id>},
        {kEnv, "aici_host_eos_token", "", true, host_function<eos_token>},
        {kEnv, "aici_host_get_config", "ii", true, host_function<get_config>},
        {kEnv, "aici_host_stop", "", false, host_function<stop>},

        {kWasi, "proc_exit", "i", false, host_function<stop>},
        {kWasi, "sched_yield", "", true, host_function<constant<0>>},
        {kWasi, "fd_sync", "i", true, host_function<constant<0>>},
        {kWasi, "random_get", "ii", true, host_function<constant<0>>},  // leaves the buffer unchanged
        {kWasi, "args_get", "ii", true, host_function<constant<0>>},
        {kWasi, "environ_get", "ii", true, host_function<constant<0>>},
        {kWasi, "args_sizes_get", "ii", true, host_function<two_zero_sizes>},
        {kWasi, "environ_sizes_get", "ii", true, host_function<two_zero_sizes>},
        {kWasi, "clock_time_get", "iIi", true, host_function<clock_time_get>},
        {kWasi, "clock_res_get", "ii", true, host_function<constant<kNotPermitted>>},
        {kWasi, "fd_fdstat_get", "ii", true, host_function<fd_fdstat_get>},
        {kWasi, "fd_write", "iiii", true, host_function<fd_write>},
    };
    // Functions that standard libraries import but do not call. They return an error.
    static constexpr std::pair<const char *, const char *> kRefused[] = {{"fd_advise", "iIIi"},
                                                                         {"fd_allocate", "iII"},
                                                                         {"fd_close", "i"},
                                                                         {"fd_datasync", "i"},
                                                                         {"fd_fdstat_set_flags", "ii"},
                                                                         {"fd_fdstat_set_rights", "iII"},
                                                                         {"fd_filestat_get", "ii"},
                                                                         {"fd_filestat_set_size", "iI"},
                                                                         {"fd_filestat_set_times", "iIIi"},
                                                                         {"fd_pread", "iiiIi"},
                                                                         {"fd_prestat_dir_name", "iii"},
                                                                         {"fd_prestat_get", "ii"},
                                                                         {"fd_pwrite", "iiiIi"},
                                                                         {"fd_read", "iiii"},
                                                                         {"fd_readdir", "iiiIi"},
                                                                         {"fd_renumber", "ii"},
                                                                         {"fd_seek", "iIii"},
                                                                         {"fd_tell", "ii"},
                                                                         {"path_create_directory", "iii"},
                                                                         {"path_filestat_get", "iiiii"},
                                                                         {"path_filestat_set_times", "iiiiIIi"},
                                                                         {"path_link", "iiiiiii"},
                                                                         {"path_open", "iiiiiIIii"},
                                                                         {"path_readlink", "iiiiii"},
                                                                         {"path_remove_directory", "iii"},
                                                                         {"path_rename", "iiiiii"},
                                                                         {"path_symlink", "iiiii"},
                                                                         {"path_unlink_file", "iii"},
                                                                         {"poll_oneoff", "iiii"}};
    for (const auto &[name, params] : kRefused) made->push_back({kWasi, name, params, true, kRefuse});
    return made;
  }();
  return *functions;
}

void Host::begin_call(std::string argument_text) {
  call_argument = std::move(argument_text);
  tokenized.clear();
  storage_reply.clear();
  result.clear();
  has_result = has_mask = false;
  log_bytes = 0;
  problem.clear();
}

void Host::cut_log(std::uint64_t total) {
  if (total <= log_dropped) {
    log.clear();
    log_dropped = total;
  } else if (total < log_total()) {
    log.resize(total - log_dropped);
  }
}

}  // namespace weft::aici
