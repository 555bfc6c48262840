#include "grammar/llguidance/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>

namespace weft {
namespace {

std::atomic<bool> ready{false};
std::mutex bind_mutex;

template <class Fn>
bool resolve(void *library, const char *name, Fn &out) {
  out = reinterpret_cast<Fn>(dlsym(library, name));
  return out != nullptr;
}

}  // namespace

namespace llg {

// Written once under the mutex, read-only after `ready`.
Api api{};

void need_binding() {
  if (!ready.load(std::memory_order_acquire)) throw std::logic_error("llguidance_bind has not succeeded yet");
}

std::string tidy(const char *text) {
  std::string tidied(text ? text : "llguidance failed without an error text");
  for (const char *trace : {"<state>", "<backtrace>", "<non-verbose/>"})
    tidied.erase(std::min(tidied.size(), tidied.find(trace)));
  while (!tidied.empty() && (tidied.back() == '\n' || tidied.back() == ' ')) tidied.pop_back();
  return tidied;
}

}  // namespace llg

std::string llguidance_bind(const char *library_path) {
  std::lock_guard<std::mutex> lock(bind_mutex);
  if (ready.load(std::memory_order_acquire)) return "";
  // Python's import has usually loaded it already; then this only counts a reference.
  void *library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return dlerror();
  llg::Api resolved{};
  if (!resolve(library, "llg_get_version", resolved.get_version) ||
      !resolve(library, "llg_new_tokenizer_v2", resolved.new_tokenizer) ||
      !resolve(library, "llg_free_tokenizer", resolved.free_tokenizer) ||
      !resolve(library, "llg_constraint_init_set_defaults", resolved.init_defaults) ||
      !resolve(library, "llg_new_matcher", resolved.new_matcher) ||
      !resolve(library, "llg_clone_matcher", resolved.clone_matcher) ||
      !resolve(library, "llg_free_matcher", resolved.free_matcher) ||
      !resolve(library, "llg_matcher_get_error", resolved.get_error) ||
      !resolve(library, "llg_matcher_compute_mask", resolved.compute_mask) ||
      !resolve(library, "llg_matcher_get_mask", resolved.get_mask) ||
      !resolve(library, "llg_matcher_validate_tokens", resolved.validate_tokens) ||
      !resolve(library, "llg_matcher_consume_token", resolved.consume_token) ||
      !resolve(library, "llg_matcher_rollback", resolved.rollback) ||
      !resolve(library, "llg_matcher_is_accepting", resolved.is_accepting))
    return "a function of LLGuidance's C interface is missing";
  const std::string version = resolved.get_version();
  if (version.rfind("llguidance@1.9.", 0) != 0) return version + " where llguidance 1.9 is needed";
  llg::api = resolved;
  ready.store(true, std::memory_order_release);
  return "";
}

}  // namespace weft
