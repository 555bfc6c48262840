// What stands in the place of a slot's count of accepted drafts where the host chooses its tokens. Python-free.
#pragma once

#include <cstdint>

namespace weft {

constexpr std::int64_t kHeldSlot = -(std::int64_t{1} << 62);

}  // namespace weft
