// Undoes the changes of a program's step to its memory and globals. Python-free.
//
// A shadow holds a copy of the memory. After a step the memory is compared with the copy, and the old contents of
// differing pages are saved. In a large memory, only pages that the kernel reports as written are compared, if the
// kernel can report them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "aici/base/written_pages.h"
#include "aici/host/instance.h"

namespace weft::aici {

inline constexpr std::size_t kGuestPage = 4096;
using GuestPage = std::array<std::uint8_t, kGuestPage>;

// One step's changes, as the old contents of the memory and globals that it changed.
struct GuestChange {
  std::size_t size_before = 0;  // of the memory, in bytes
  std::vector<std::pair<std::uint32_t, std::shared_ptr<const GuestPage>>> pages;
  std::vector<wasmtime::Val> globals_before;
  std::size_t num_bytes() const { return pages.size() * kGuestPage; }
};

// Several consecutive changes, joined into one.
class GuestChanges {
 public:
  // If it throws, a part of the change has been added. It is safe to append the same change again.
  void append(const GuestChange &later);
  bool is_empty() const { return is_empty_; }
  GuestChange joined() const;  // requires !is_empty()

 private:
  bool is_empty_ = true;
  std::size_t size_before_ = 0;
  std::vector<wasmtime::Val> globals_before_;
  std::unordered_map<std::uint32_t, std::shared_ptr<const GuestPage>> pages_;
};

// A copy of an instance's memory and globals after its last step.
class GuestShadow {
 public:
  GuestShadow() = default;
  ~GuestShadow();
  GuestShadow(const GuestShadow &) = delete;
  GuestShadow &operator=(const GuestShadow &) = delete;

  // Copies the instance's state to the shadow, and returns the change since the last call. If the step's time is over,
  // throws ProgramError and leaves the shadow unchanged.
  GuestChange follow(const Instance &instance);
  // Undoes a change in the shadow only; `restore` then brings the instance to the same state.
  void undo(const GuestChange &change);
  // Whether `restore` must make a new instance, because a memory can't shrink. That runs the program's start function,
  // so it must happen on a guest thread.
  bool needs_instance(const Instance &instance) const { return instance.memory_size() != size_; }
  // Restores the instance to the shadow's state. `has_run` means that since `follow` the instance may have changed in
  // more than the undone pages, so all pages are compared.
  void restore(Instance &instance, bool has_run);
  // Makes a new instance in `other` with the shadow's state. Call it on a guest thread.
  void copy_to(Instance &other) const;

 private:
  void resize(std::size_t size);
  void save_changes(const Instance &instance, GuestChange &change);
  std::vector<WrittenPages::Range> written_ranges(const Instance &instance);

  std::uint8_t *data_ = nullptr;  // mapped, so pages that were never written take no memory
  std::size_t size_ = 0;
  std::vector<wasmtime::Val> globals_;
  std::vector<std::uint32_t> undone_;  // pages undone since the last `restore`
  WrittenPages written_;
  std::uint64_t watched_ = 0;  // Instance::num_memories of the memory that `written_` watches or may watch; 0: none
};

}  // namespace weft::aici
