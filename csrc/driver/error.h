// A driver call that failed, as a C++ exception; Python sees weft.errors.DriverError.
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

// What is known of an error code; null where weft does not know it.
struct ErrorText {
  cu::CUresult code;
  const char *name;
  const char *meaning;  // what it means and what to do
};
const ErrorText *error_text(cu::CUresult code);

// Throws DriverError "call: NAME (code): meaning" unless `result` is CUDA_SUCCESS.
void check(cu::CUresult result, const char *call, const cu::Driver &driver);

// 0 the CPU's table, 1 CUDA's; throws DriverError where CUDA can't be used, with the reason.
const cu::Driver &driver_by_index(int index);

}  // namespace weft
