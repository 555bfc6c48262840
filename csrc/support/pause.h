// A moment of a thread that spins, which leaves the core's other thread more of it.
#pragma once

namespace weft {

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace weft
