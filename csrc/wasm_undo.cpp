#include "wasm_undo.h"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <utility>

#include "wasm_error.h"

namespace weft {

void GuestChanges::append(const GuestChange &later) {
  if (is_empty_) {
    is_empty_ = false;
    size_before_ = later.size_before;
    globals_before_ = later.globals_before;
  }
  // A page that an earlier change has saved is older there; one beyond the first size goes with the memory.
  for (const auto &[index, page] : later.pages)
    if (index < size_before_ / kGuestPage) pages_.emplace(index, page);
}

GuestChange GuestChanges::whole() const {
  GuestChange change;
  change.size_before = size_before_;
  change.globals_before = globals_before_;
  change.pages.assign(pages_.begin(), pages_.end());
  return change;
}

GuestShadow::~GuestShadow() {
  if (data_) munmap(data_, size_);
}

void GuestShadow::resize(std::size_t size) {
  if (size == size_) return;
  void *mapped = nullptr;
  if (size == 0) {
    munmap(data_, size_);
  } else if (!data_) {
    mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  } else {
    mapped = mremap(data_, size_, size, MREMAP_MAYMOVE);
  }
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::uint8_t *>(mapped);
  size_ = size;
}

GuestChange GuestShadow::follow(const WasmInstance &instance) {
  GuestChange change;
  change.size_before = size_;
  try {
    save_changes(instance, change);
    change.globals_before = std::exchange(globals_, instance.globals());
  } catch (...) {
    // Where there is no memory for all, the shadow stays what it was.
    resize(change.size_before);
    for (const auto &[index, page] : change.pages) std::memcpy(data_ + index * kGuestPage, page->data(), kGuestPage);
    throw;
  }
  return change;
}

void GuestShadow::save_changes(const WasmInstance &instance, GuestChange &change) {
  const std::uint8_t *memory = instance.memory();
  const std::size_t old_size = size_;
  resize(instance.memory_size());
  for (std::size_t offset = 0; offset < size_; offset += kGuestPage) {
    if (std::memcmp(data_ + offset, memory + offset, kGuestPage) == 0) continue;
    if (offset < old_size) {
      auto page = std::make_shared<GuestPage>();
      std::memcpy(page->data(), data_ + offset, kGuestPage);
      change.pages.emplace_back(static_cast<std::uint32_t>(offset / kGuestPage), std::move(page));
    }
    std::memcpy(data_ + offset, memory + offset, kGuestPage);
  }
}

void GuestShadow::undo(const GuestChange &change) {
  resize(change.size_before);
  for (const auto &[index, page] : change.pages) {
    std::memcpy(data_ + index * kGuestPage, page->data(), kGuestPage);
    undone_.push_back(index);
  }
  globals_ = change.globals_before;
}

void GuestShadow::restore(WasmInstance &instance, bool has_run) {
  if (needs_instance(instance)) {
    copy_to(instance);
  } else {
    std::uint8_t *memory = instance.memory();
    if (has_run) {
      for (std::size_t offset = 0; offset < size_; offset += kGuestPage)
        if (std::memcmp(memory + offset, data_ + offset, kGuestPage) != 0)
          std::memcpy(memory + offset, data_ + offset, kGuestPage);
    } else {
      for (const std::size_t index : undone_)
        if (index * kGuestPage < size_)
          std::memcpy(memory + index * kGuestPage, data_ + index * kGuestPage, kGuestPage);
    }
    instance.set_globals(globals_);
  }
  undone_.clear();
}

void GuestShadow::copy_to(WasmInstance &other) const {
  other.host.is_muted = true;
  other.begin_time(other.host.program->limits.start_ms, "start_ms", "to start");
  other.instantiate();
  other.host.is_muted = false;
  if (other.memory_size() > size_) throw WasmError("the program's memory is larger in a copy; it can't be restored");
  if (other.memory_size() < size_) other.grow_memory(size_);
  std::memcpy(other.memory(), data_, size_);
  other.set_globals(globals_);
}

}  // namespace weft
