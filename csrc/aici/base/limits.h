// What one program's instance may take.
#pragma once

#include <cstdint>

namespace weft {

struct WasmLimits {
  int step_ms = 25;     // of a thread's time for one step
  int start_ms = 1000;  // ... and from the instance to the first mask
  std::int64_t memory_bytes = 64 << 20;
  std::int64_t stack_bytes = 512 << 10;  // the program's own, out of its thread's
  std::int64_t table_elements = 100000;
  std::int64_t log_bytes = 64 << 10;      // of one step; as much of the newest is kept
  std::int64_t result_bytes = 1 << 20;    // of a result, a command, or a text to tokenize
  std::int64_t variable_bytes = 1 << 20;  // of a request's variables with their names
  std::int64_t max_variables = 1000;
  std::int64_t undo_bytes = 64 << 20;  // kept to take tokens back
  int undo_tokens = 256;               // ... and how many
};

inline constexpr std::int64_t kMaxStackBytes = 4 << 20;  // half of a guest thread's

}  // namespace weft
