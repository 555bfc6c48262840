// The shapes of AMX's tiles. Internal to this folder.
#pragma once

#include <cstdint>

#include "support/instruction_set.h"

namespace weft {

// A compiler barrier. The compiler does not know that tile instructions read memory, so earlier writes must be done.
WEFT_INLINE void finish_writes() { __asm__ volatile("" ::: "memory"); }

struct TileShapes {
  std::uint8_t palette = 1, start = 0, reserved[14] = {};
  std::uint16_t bytes[16] = {};
  std::uint8_t rows[16] = {};
};

}  // namespace weft
