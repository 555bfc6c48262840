// A marker in place of the number of accepted drafts. Verification writes it for a held slot, whose tokens the host
// chooses, and the grammar then commits nothing for that slot. Python-free.
#pragma once

#include <cstdint>

namespace weft {

constexpr std::int64_t kHeldSlot = -(std::int64_t{1} << 62);

}  // namespace weft
