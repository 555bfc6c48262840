// Taking back what a step of a program changed: the memory is compared with a copy, and the pages that differ are kept
// as they were. In a large memory only the pages that the kernel reports as written are compared, where it does.
// Python-free.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "aici/base/written_pages.h"
#include "aici/host/instance.h"

namespace weft {

inline constexpr std::size_t kGuestPage = 4096;
using GuestPage = std::array<std::uint8_t, kGuestPage>;

// What a step changed, as it was before.
struct GuestChange {
  std::size_t size_before = 0;  // of the memory, bytes
  std::vector<std::pair<std::uint32_t, std::shared_ptr<const GuestPage>>> pages;
  std::vector<wasm::Val> globals_before;
  std::size_t num_bytes() const { return pages.size() * kGuestPage; }
};

// Many changes, one after another, as one.
class GuestChanges {
 public:
  // On failure a part of it is there, and may be appended again.
  void append(const GuestChange &later);
  bool is_empty() const { return is_empty_; }
  GuestChange whole() const;  // unless it is empty

 private:
  bool is_empty_ = true;
  std::size_t size_before_ = 0;
  std::vector<wasm::Val> globals_before_;
  std::unordered_map<std::uint32_t, std::shared_ptr<const GuestPage>> pages_;
};

// A copy of an instance's memory and globals as of its last step.
class GuestShadow {
 public:
  GuestShadow() = default;
  ~GuestShadow();
  GuestShadow(const GuestShadow &) = delete;
  GuestShadow &operator=(const GuestShadow &) = delete;

  // Follows the instance; what it changed since the last time. Throws WasmError where the time for its step is over.
  GuestChange follow(const WasmInstance &instance);
  // Takes the shadow back; the instance stays as it is until `restore`.
  void undo(const GuestChange &change);
  // Whether `restore` may run the program's start function, and so belongs on a guest thread: an instance whose memory
  // has grown since gets a new store.
  bool needs_instance(const WasmInstance &instance) const { return instance.memory_size() != size_; }
  // Makes the instance what the shadow is. `has_run`: it may have changed since `follow`, beside what was undone.
  void restore(WasmInstance &instance, bool has_run);
  // Makes `other` a new instance in the state of the shadow. On a guest thread.
  void copy_to(WasmInstance &other) const;

 private:
  void resize(std::size_t size);
  void save_changes(const WasmInstance &instance, GuestChange &change);
  std::vector<WrittenPages::Range> written_in(const WasmInstance &instance);

  std::uint8_t *data_ = nullptr;  // mapped; pages that were never written take no memory
  std::size_t size_ = 0;
  std::vector<wasm::Val> globals_;
  std::vector<std::uint32_t> undone_;  // pages, since the last restore
  WrittenPages written_;
  std::uint64_t watched_ = 0;  // the memory that it knows of (WasmInstance::num_memories); 0: none
};

}  // namespace weft
