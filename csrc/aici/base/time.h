// The time that one step of a program may take, or its start: the program's, and what the host does for it.
// Python-free.
#pragma once

#include <cstdint>
#include <string>

#include "aici/base/error.h"
#include "support/thread_time.h"

namespace weft {

// The time of the working thread, so that a busy machine does not end a program.
class WasmTime {
 public:
  // What comes from here on may take so long together; `limit` is the limit's name.
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
  // Throws WasmError where it is used up. For what the host does, once in a while.
  void check() const {
    if (left_ns() <= 0) throw WasmError(problem());
  }

 private:
  std::int64_t limit_ms_ = 0, began_ns_ = 0;
  const char *limit_name_ = "", *during_ = "";
};

}  // namespace weft
