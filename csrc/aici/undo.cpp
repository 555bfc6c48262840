#include "aici/undo.h"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <utility>

#include "aici/base/limits.h"

namespace weft::aici {
namespace {

// Comparing a smaller memory takes less time than asking the kernel.
constexpr std::size_t kMinWatchedBytes = 1 << 20;
// Writing one watched page costs as much as comparing this many pages. So the watch ends if a step writes more than
// 1 / kPagesPerWatchedWrite of the memory.
constexpr std::size_t kPagesPerWatchedWrite = 16;

constexpr std::size_t kPagesBetweenChecks = 64;  // about half a millisecond

}  // namespace

void GuestChanges::append(const GuestChange &later) {
  if (is_empty_) {
    globals_before_ = later.globals_before;
    size_before_ = later.size_before;
    is_empty_ = false;
  }
  // `emplace` keeps a page of an earlier change, which has the older content. Pages beyond the first size are not
  // needed, because the memory shrinks to that size.
  for (const auto &[index, page] : later.pages)
    if (index < size_before_ / kGuestPage) pages_.emplace(index, page);
}

GuestChange GuestChanges::joined() const {
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

GuestChange GuestShadow::follow(const Instance &instance) {
  GuestChange change;
  change.size_before = size_;
  try {
    save_changes(instance, change);
    change.globals_before = std::exchange(globals_, instance.globals());
  } catch (...) {
    // Memory or time ran out. Restore the shadow's old state.
    resize(change.size_before);
    for (const auto &[index, page] : change.pages) std::memcpy(data_ + index * kGuestPage, page->data(), kGuestPage);
    throw;
  }
  return change;
}

void GuestShadow::save_changes(const Instance &instance, GuestChange &change) {
  const std::uint8_t *memory = instance.memory();
  const std::size_t old_size = size_;
  const std::vector<WrittenPages::Range> written = written_ranges(instance);
  resize(instance.memory_size());
  std::size_t since_check = 0;
  for (const WrittenPages::Range &range : written)
    for (std::size_t offset = range.begin; offset < range.end; offset += kGuestPage) {
      if (++since_check % kPagesBetweenChecks == 0) instance.host.time.check();
      if (std::memcmp(data_ + offset, memory + offset, kGuestPage) == 0) continue;
      if (offset < old_size) {
        auto page = std::make_shared<GuestPage>();
        std::memcpy(page->data(), data_ + offset, kGuestPage);
        change.pages.emplace_back(static_cast<std::uint32_t>(offset / kGuestPage), std::move(page));
      }
      std::memcpy(data_ + offset, memory + offset, kGuestPage);
    }
}

// Returns the parts of the memory that may differ from the shadow.
std::vector<WrittenPages::Range> GuestShadow::written_ranges(const Instance &instance) {
  const std::size_t size = instance.memory_size();
  std::vector<WrittenPages::Range> written;
  if (size == size_ && watched_ == instance.num_memories() && written_.take(written)) {
    std::size_t num_bytes = 0;
    for (const WrittenPages::Range &range : written) num_bytes += range.end - range.begin;
    if (num_bytes > size / kPagesPerWatchedWrite) written_.stop();
    return written;
  }
  // Compare the whole memory. It may grow again if it has just grown, so watch it only from the next step on.
  const bool is_new = size != size_ || watched_ != instance.num_memories();
  watched_ = size == size_ ? instance.num_memories() : 0;
  if (is_new && size == size_ && size >= kMinWatchedBytes) written_.watch(instance.memory(), size);
  return {{0, size}};
}

void GuestShadow::undo(const GuestChange &change) {
  resize(change.size_before);
  for (const auto &[index, page] : change.pages) {
    std::memcpy(data_ + index * kGuestPage, page->data(), kGuestPage);
    undone_.push_back(index);
  }
  globals_ = change.globals_before;
}

void GuestShadow::restore(Instance &instance, bool has_run) {
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

void GuestShadow::copy_to(Instance &other) const {
  other.host.is_muted = true;
  other.host.time.begin(other.host.program->limits.start_ms, "start_ms", "to start");
  other.instantiate();
  other.host.is_muted = false;
  if (other.memory_size() > size_) throw ProgramError("the program's memory is larger in a copy; it can't be restored");
  if (other.memory_size() < size_) other.grow_memory(size_);
  std::memcpy(other.memory(), data_, size_);
  other.set_globals(globals_);
}

}  // namespace weft::aici
