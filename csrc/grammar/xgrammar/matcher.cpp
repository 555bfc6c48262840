#include "grammar/xgrammar/matcher.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "grammar/xgrammar/tvm_ffi_abi.h"
#include "matcher/no_throw.h"

namespace weft {
namespace {

using tvm::Any;

struct Binding {
  tvm::Api api{};
  void *accept = nullptr, *fill = nullptr, *rollback = nullptr, *fork = nullptr, *reset = nullptr,
       *is_terminated = nullptr, *jump_forward = nullptr;
};

// Written once under the mutex, read-only after `ready`.
Binding binding;
std::atomic<bool> ready{false};
std::mutex bind_mutex;

template <class Fn>
bool resolve(void *library, const char *name, Fn &out) {
  out = reinterpret_cast<Fn>(dlsym(library, name));
  return out != nullptr;
}

void *find_method(const tvm::TypeInfo &type, const char *name) {
  for (std::int32_t i = 0; i < type.num_methods; ++i) {
    const tvm::MethodInfo &method = type.methods[i];
    if (method.name.size == std::strlen(name) && std::memcmp(method.name.data, name, method.name.size) == 0)
      return method.method.v_ptr;
  }
  return nullptr;
}

Any none() {
  Any any;
  std::memset(&any, 0, sizeof any);
  return any;
}
Any integer(std::int64_t value) {
  Any any = none();
  any.type_index = tvm::kInt;
  any.v_int64 = value;
  return any;
}
Any boolean(bool value) {
  Any any = integer(value);
  any.type_index = tvm::kBool;
  return any;
}
Any object(void *handle) {
  Any any = none();
  any.v_obj = static_cast<tvm::Object *>(handle);
  any.type_index = any.v_obj->type_index;
  return any;
}

struct Shared {
  int vocab_size;
  std::vector<std::int32_t> end_tokens;
  std::shared_ptr<const TokenTexts> texts;

  // Special tokens are refused here: XGrammar refuses them too, but prints a line on stderr each time.
  bool is_special(std::int32_t token) const {
    return texts && texts->text(token).empty() &&
           std::find(end_tokens.begin(), end_tokens.end(), token) == end_tokens.end();
  }
};

struct XGrammarMatcher {
  void *handle;
  std::shared_ptr<const Shared> shared;
  std::string error;

  ~XGrammarMatcher() { binding.api.ObjectDecRef(handle); }

  // Moves the error out of TVM FFI's per-thread slot, so that a later call by other code does not find it there.
  int fail() {
    void *raised = nullptr;
    binding.api.ErrorMoveFromRaised(&raised);
    if (!raised) {
      error = "xgrammar failed without an error text";
      return -1;
    }
    const auto *cell =
        reinterpret_cast<const tvm::ErrorCell *>(static_cast<const char *>(raised) + sizeof(tvm::Object));
    error.assign(cell->message.data, cell->message.size);
    // Drop the time and XGrammar's source location at the beginning of the text, which do not help a user.
    const std::size_t place = error.find(".cc:");
    const std::size_t text = place == std::string::npos ? place : error.find(": ", place);
    if (text != std::string::npos) error.erase(0, text + 2);
    while (!error.empty() && error.back() == '\n') error.pop_back();
    binding.api.ObjectDecRef(raised);
    return -1;
  }

  // Calls `method(self, args...)`. True if it returned without an error.
  template <class... Args>
  bool call(void *method, Any &result, Args... args) {
    Any packed[] = {object(handle), args...};
    result = none();
    return binding.api.FunctionCall(method, packed, static_cast<std::int32_t>(1 + sizeof...(args)), &result) == 0;
  }
};

// A result that is an object; released at the end of the scope.
struct Owned {
  tvm::Object *object;
  ~Owned() { binding.api.ObjectDecRef(object); }
};

int xgr_is_terminated(XGrammarMatcher &matcher) {
  Any result;
  // This call takes no argument and should not fail. An error would mean a broken interface, and then "ended" is the
  // safe answer.
  if (!matcher.call(binding.is_terminated, result)) return matcher.fail(), 1;
  return result.v_int64 != 0;
}

int xgr_accept(XGrammarMatcher &matcher, std::int32_t token) {
  if (token < 0 || token >= matcher.shared->vocab_size || matcher.shared->is_special(token)) return 0;
  if (xgr_is_terminated(matcher)) return 0;
  Any result;
  if (!matcher.call(binding.accept, result, integer(token), boolean(false))) return matcher.fail();
  return result.v_int64 != 0;
}

int xgr_rollback(XGrammarMatcher &matcher, int count) {
  if (count < 0) return matcher.error = "can't roll back a negative number of tokens", -1;
  if (count == 0) return 0;
  Any result;
  return matcher.call(binding.rollback, result, integer(count)) ? 0 : matcher.fail();
}

int xgr_validate(XGrammarMatcher &matcher, const std::int32_t *tokens, int count) {
  int taken = 0, outcome = 1;
  while (taken < count && (outcome = xgr_accept(matcher, tokens[taken])) == 1) ++taken;
  const int undone = xgr_rollback(matcher, taken);
  return outcome < 0 || undone < 0 ? -1 : taken;
}

int xgr_fill(XGrammarMatcher &matcher, std::int32_t *row, int words) {
  const int needed = (matcher.shared->vocab_size + 31) / 32;
  if (words < needed) return matcher.error = "the mask row is shorter than the vocabulary", -1;
  std::memset(row + needed, 0, static_cast<std::size_t>(words - needed) * sizeof *row);
  if (xgr_is_terminated(matcher)) {
    std::memset(row, 0, static_cast<std::size_t>(needed) * sizeof *row);
    for (std::int32_t token : matcher.shared->end_tokens)
      row[token / 32] = static_cast<std::int32_t>(static_cast<std::uint32_t>(row[token / 32]) | 1u << (token % 32));
    return 1;
  }
  std::int64_t shape[1] = {needed}, strides[1] = {1};
  tvm::DLTensor tensor{row, tvm::kDLCPU, 0, 1, tvm::kDLInt, 32, 1, shape, strides, 0};
  Any argument = none(), result;
  argument.type_index = tvm::kDLTensorPtr;
  argument.v_ptr = &tensor;
  if (!matcher.call(binding.fill, result, argument, integer(0), boolean(false))) return matcher.fail();
  return result.v_int64 != 0;
}

void *xgr_fork(XGrammarMatcher &matcher) {
  Any result;
  if (!matcher.call(binding.fork, result)) return matcher.fail(), nullptr;
  if (result.type_index < tvm::kStaticObjectBegin) return matcher.error = "xgrammar's fork returned no object", nullptr;
  try {
    return new XGrammarMatcher{result.v_obj, matcher.shared, {}};
  } catch (...) {
    binding.api.ObjectDecRef(result.v_obj);
    throw;
  }
}

int xgr_reset(XGrammarMatcher &matcher) {
  Any result;
  return matcher.call(binding.reset, result) ? 0 : matcher.fail();
}

extern const weft_matcher_ops kOps;

// XGrammar finds the bytes that must follow. Its call fails after the end, so do not call it there.
int xgr_forced(XGrammarMatcher &matcher, std::int32_t *tokens, int capacity) {
  if (!matcher.shared->texts || capacity < 1 || xgr_is_terminated(matcher)) return 0;
  Any result;
  if (!matcher.call(binding.jump_forward, result)) return matcher.fail();
  if (result.type_index == tvm::kSmallStr)
    return forced_tokens({&kOps, &matcher}, *matcher.shared->texts, {result.v_bytes, result.small_len}, tokens,
                         capacity);
  if (result.type_index < tvm::kStaticObjectBegin)
    return matcher.error = "xgrammar's find_jump_forward_string returned no text", -1;
  const Owned owned{result.v_obj};
  if (result.type_index != tvm::kStr) {
    return matcher.error = "xgrammar's find_jump_forward_string returned no text", -1;
  }
  const auto *text = reinterpret_cast<const tvm::ByteArray *>(result.v_obj + 1);
  return forced_tokens({&kOps, &matcher}, *matcher.shared->texts, {text->data, text->size}, tokens, capacity);
}

const char *xgr_error(XGrammarMatcher &matcher) { return matcher.error.c_str(); }

void xgr_destroy(XGrammarMatcher &matcher) { delete &matcher; }

const weft_matcher_ops kOps = {WEFT_MATCHER_ABI,
                               guarded<xgr_accept>,
                               guarded<xgr_validate>,
                               guarded<xgr_fill>,
                               guarded<xgr_rollback>,
                               guarded<xgr_fork>,
                               guarded<xgr_reset>,
                               guarded<xgr_forced>,
                               guarded<xgr_is_terminated>,
                               guarded<xgr_error>,
                               guarded<xgr_destroy>,
                               nullptr,
                               nullptr};

}  // namespace

std::string xgrammar_bind(const char *tvm_ffi_path, const char *xgrammar_path) {
  std::lock_guard<std::mutex> lock(bind_mutex);
  if (ready.load(std::memory_order_acquire)) return "";
  void *ffi = dlopen(tvm_ffi_path, RTLD_NOW | RTLD_LOCAL);
  if (!ffi) return dlerror();
  // Loading the library registers XGrammar's types. Usually Python's import has done so, and this only counts a
  // reference.
  if (!dlopen(xgrammar_path, RTLD_NOW | RTLD_LOCAL)) return dlerror();

  Binding resolved;
  tvm::Api &api = resolved.api;
  if (!resolve(ffi, "TVMFFIGetVersion", api.GetVersion) || !resolve(ffi, "TVMFFITypeKeyToIndex", api.TypeKeyToIndex) ||
      !resolve(ffi, "TVMFFIGetTypeInfo", api.GetTypeInfo) || !resolve(ffi, "TVMFFIFunctionCall", api.FunctionCall) ||
      !resolve(ffi, "TVMFFIErrorMoveFromRaised", api.ErrorMoveFromRaised) ||
      !resolve(ffi, "TVMFFIObjectIncRef", api.ObjectIncRef) || !resolve(ffi, "TVMFFIObjectDecRef", api.ObjectDecRef))
    return "a function of TVM FFI's C interface is missing";
  tvm::Version version{};
  api.GetVersion(&version);
  if (version.major != 0 || version.minor != 1)
    return "TVM FFI " + std::to_string(version.major) + "." + std::to_string(version.minor) + " where 0.1 is needed";

  const char *key = "xgrammar.tvm_ffi_binding.GrammarMatcher";
  const tvm::ByteArray key_bytes{key, std::strlen(key)};
  std::int32_t index = 0;
  if (api.TypeKeyToIndex(&key_bytes, &index) != 0) {
    void *raised = nullptr;
    api.ErrorMoveFromRaised(&raised);
    if (raised) api.ObjectDecRef(raised);
    return std::string("the type ") + key + " is not registered";
  }
  const tvm::TypeInfo *type = api.GetTypeInfo(index);
  if (!type) return std::string("the type ") + key + " has no method table";
  const std::pair<const char *, void **> methods[] = {{"accept_token", &resolved.accept},
                                                      {"fill_next_token_bitmask", &resolved.fill},
                                                      {"rollback", &resolved.rollback},
                                                      {"fork", &resolved.fork},
                                                      {"reset", &resolved.reset},
                                                      {"is_terminated", &resolved.is_terminated},
                                                      {"find_jump_forward_string", &resolved.jump_forward}};
  for (const auto &[name, slot] : methods)
    if (!(*slot = find_method(*type, name))) return std::string("GrammarMatcher has no method ") + name;
  binding = resolved;
  ready.store(true, std::memory_order_release);
  return "";
}

weft_matcher xgrammar_matcher(void *handle, int vocab_size, std::vector<std::int32_t> end_tokens,
                              std::shared_ptr<const TokenTexts> texts) {
  if (!ready.load(std::memory_order_acquire)) throw std::logic_error("xgrammar_bind has not succeeded yet");
  binding.api.ObjectIncRef(handle);
  end_tokens.erase(std::remove_if(end_tokens.begin(), end_tokens.end(),
                                  [vocab_size](std::int32_t token) { return token < 0 || token >= vocab_size; }),
                   end_tokens.end());
  auto shared = std::make_shared<const Shared>(Shared{vocab_size, std::move(end_tokens), std::move(texts)});
  return {&kOps, new XGrammarMatcher{handle, std::move(shared), {}}};
}

}  // namespace weft
