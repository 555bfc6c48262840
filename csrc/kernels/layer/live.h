// The number of live rows of a call. A graph is captured for the largest number of rows; the rows that a replay
// computes are data. Internal to this folder.
#pragma once

#include <algorithm>
#include <cstdint>

namespace weft {

// Returns the number of rows that a call computes: all of them, or with `live` the first *live.
inline std::int64_t live_rows(std::int64_t rows, const std::int64_t *live) {
  return live ? std::clamp<std::int64_t>(*live, 0, rows) : rows;
}

}  // namespace weft
