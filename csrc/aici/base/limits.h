// The limits of one program, and the error that ends a request whose program breaks one. Python-free.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "support/thread_time.h"

namespace weft::aici {

// The error that ends a program's request: a broken limit, a trap, or an invalid result. Its text is for the program's
// author.
struct ProgramError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Sizes are in bytes. The defaults are those of `weft.aici.WasmLimits`.
struct Limits {
  int step_ms = 25;     // thread time of one step
  int start_ms = 1000;  // thread time from instantiation to the first mask
  std::int64_t memory_bytes = 64 << 20;
  std::int64_t stack_bytes = 512 << 10;  // the program's call stack, on its thread's stack
  std::int64_t table_elements = 100000;
  std::int64_t log_bytes = 64 << 10;      // written in one step; the log keeps at least this many of its last bytes
  std::int64_t result_bytes = 1 << 20;    // of a result, a storage command, or a text to tokenize
  std::int64_t variable_bytes = 1 << 20;  // of one request's variables, with their names
  std::int64_t max_variables = 1000;
  std::int64_t undo_bytes = 64 << 20;  // saved contents for rollbacks
  int undo_tokens = 256;               // the number of tokens that can be rolled back
};

inline constexpr std::int64_t kMaxStackBytes = 4 << 20;  // half of a guest thread's stack

// The CPU time that a step or a start may take, in the program and in host functions. Only the working thread's CPU
// time counts, so load on the machine ends no program.
class TimeBudget {
 public:
  // Starts to count on this thread. The error message is "the program took more than N ms `during`; raise `limit` ...".
  void begin(std::int64_t milliseconds, const char *limit, const char *during) {
    limit_ms_ = milliseconds;
    limit_name_ = limit;
    during_ = during;
    began_ns_ = thread_cpu_ns();
  }

  std::int64_t left_ns() const { return limit_ms_ * 1000000 - (thread_cpu_ns() - began_ns_); }
  std::string problem() const {
    return "the program took more than " + std::to_string(limit_ms_) + " ms " + during_ + "; raise " + limit_name_ +
           " to allow it";
  }
  // Throws ProgramError if the time is used up. Long loops of the host call it regularly.
  void check() const {
    if (left_ns() <= 0) throw ProgramError(problem());
  }

 private:
  std::int64_t limit_ms_ = 0, began_ns_ = 0;
  const char *limit_name_ = "", *during_ = "";
};

}  // namespace weft::aici
