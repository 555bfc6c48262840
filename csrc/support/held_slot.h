// A marker that verification writes for a held slot in place of the number of accepted drafts. The host chooses the
// tokens of a held slot (beam search; `branch` in engine/runner/branching.py moves it on), so the grammar commits
// nothing for it. Python-free.
#pragma once

#include <cstdint>

namespace weft {

constexpr std::int64_t kHeldSlot = -(std::int64_t{1} << 62);

}  // namespace weft
