// The body of a spin loop: a pause instruction, which leaves more of the core to its other hardware thread.
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
