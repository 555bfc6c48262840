// Asks the kernel which pages of a memory were written. Python-free.
//
// This works on Linux 6.7 or later, unless a container's policy forbids userfaultfd.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::aici {

// Watches one mapping at a time. One thread uses it at a time, and no other thread writes the memory meanwhile.
class WrittenPages {
 public:
  struct Range {
    std::size_t begin, end;  // in bytes from the memory's start; whole pages
  };

  // Starts to watch. Does nothing if the memory is not whole pages, or if the kernel can't watch it; `take` then gives
  // false.
  void watch(const std::uint8_t *memory, std::size_t size);
  void stop();
  // Adds the ranges that may have been written since `watch` or the last call. False if that is not known.
  bool take(std::vector<Range> &ranges);

 private:
  std::uintptr_t begin_ = 0, end_ = 0;  // both 0 while nothing is watched
};

}  // namespace weft::aici
