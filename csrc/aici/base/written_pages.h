// Asks the kernel which pages of a WebAssembly memory were written. Python-free.
//
// This works on Linux 6.7 or later, unless a container's policy forbids userfaultfd.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::aici {

// Watches one mapping at a time. Only one thread at a time may use the object, and no thread may write the memory
// during a call.
class WrittenPages {
 public:
  struct Range {
    std::size_t begin, end;  // in bytes from the memory's start; whole pages
  };

  // Starts to watch a memory. Does nothing if the memory is not whole pages or the kernel can't watch it; then `take`
  // returns false.
  void watch(const std::uint8_t *memory, std::size_t size);
  void stop();
  // Appends the ranges that may have been written since `watch` or the last call. Returns false if they are not known.
  bool take(std::vector<Range> &ranges);

 private:
  std::uintptr_t begin_ = 0, end_ = 0;  // both 0 while nothing is watched
};

}  // namespace weft::aici
