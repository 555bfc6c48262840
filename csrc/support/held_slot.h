// The count of accepted drafts that verification writes for a held slot, whose tokens the host chooses: the grammar
// then commits nothing. Python-free.
#pragma once

#include <cstdint>

namespace weft {

constexpr std::int64_t kHeldSlot = -(std::int64_t{1} << 62);

}  // namespace weft
