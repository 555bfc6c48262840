// The C++ exception for a failed driver call, which Python sees as weft.errors.DriverError.
#pragma once

#include <stdexcept>
#include <string>

#include "driver/driver.h"

namespace weft {

class DriverError : public std::runtime_error {
 public:
  DriverError(const std::string &message, std::string name, int code)
      : std::runtime_error(message), name(std::move(name)), code(code) {}
  std::string name;  // "CUDA_ERROR_…"
  int code;
};

// The name and description of an error code. `error_text` returns null for a code that weft does not describe.
struct ErrorText {
  cu::CUresult code;
  const char *name;
  const char *meaning;  // the meaning, and what to do
};
const ErrorText *error_text(cu::CUresult code);

// Throws DriverError "call: NAME (code): meaning" unless `result` is CUDA_SUCCESS.
void check(cu::CUresult result, const char *call, const cu::Driver &driver);

// Returns the CPU's table for 0 and CUDA's for 1. Throws DriverError with the reason if CUDA cannot be used, and for
// any other index.
const cu::Driver &driver_by_index(int index);

}  // namespace weft
