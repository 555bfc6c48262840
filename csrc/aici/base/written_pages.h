// Which pages of a memory were written, from the kernel, where it tells: Linux 6.7 or later, unless a container's
// policy forbids userfaultfd. Python-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft {

// Watches one mapping at a time. One thread uses it at a time, and no other writes meanwhile.
class WrittenPages {
 public:
  struct Range {
    std::size_t begin, end;  // bytes from the memory's start, whole pages
  };

  // From now on. A memory that is not of whole pages can't be watched, nor any where the kernel does not tell.
  void watch(const std::uint8_t *memory, std::size_t size);
  void stop();
  // Where the memory may have been written since `watch`, or since the last call; false: it is not known.
  bool take(std::vector<Range> &ranges);

 private:
  std::uintptr_t begin_ = 0, end_ = 0;  // none: nothing is watched
};

}  // namespace weft
