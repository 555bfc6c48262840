#include "driver/error.h"

namespace weft {

using namespace cu;

#define WEFT_ERROR(name, meaning) {name, #name, meaning}
static const ErrorText kErrors[] = {
    WEFT_ERROR(CUDA_SUCCESS, "no error"),
    WEFT_ERROR(CUDA_ERROR_INVALID_VALUE, "an argument is out of range or null"),
    WEFT_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "memory or threads ran out"),
    WEFT_ERROR(CUDA_ERROR_NOT_INITIALIZED, "the driver is not initialised; call cuInit first"),
    WEFT_ERROR(CUDA_ERROR_DEINITIALIZED, "the driver is shutting down with the process"),
    WEFT_ERROR(CUDA_ERROR_STUB_LIBRARY, "libcuda.so.1 is the toolkit's stub; install NVIDIA's driver"),
    WEFT_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA device was found"),
    WEFT_ERROR(CUDA_ERROR_INVALID_DEVICE, "no device has this number"),
    WEFT_ERROR(CUDA_ERROR_INVALID_CONTEXT,
               "no CUDA context is current on this thread; make the runtime of a device first"),
    WEFT_ERROR(CUDA_ERROR_INVALID_HANDLE, "the handle was destroyed, or is not one of this driver's"),
    WEFT_ERROR(CUDA_ERROR_ILLEGAL_STATE, "the object is not in a state in which this can be done"),
    WEFT_ERROR(CUDA_ERROR_NOT_FOUND, "a named symbol was not found"),
    WEFT_ERROR(CUDA_ERROR_NOT_READY, "the work is not done yet"),
    WEFT_ERROR(CUDA_ERROR_LAUNCH_FAILED, "a kernel failed; the context is lost and the process must be restarted"),
    WEFT_ERROR(
        CUDA_ERROR_NOT_PERMITTED,
        "a callback called the driver; host functions and destructors must not, hand the work to another thread"),
    WEFT_ERROR(CUDA_ERROR_NOT_SUPPORTED, "this driver does not support the operation"),
    WEFT_ERROR(
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        "the operation is illegal while a stream is captured, and it invalidated the capture; do it before or after"),
    WEFT_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
               "an earlier illegal call invalidated the capture; end it and capture again without that call"),
    WEFT_ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE,
               "a wait would join two captures; order the streams of one capture only by events recorded in it"),
    WEFT_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
               "the capture did not begin on this stream; end it on the stream that it began on"),
    WEFT_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
               "a forked stream did not join; record an event on it and make the capture's first stream wait for it"),
    WEFT_ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
               "a captured stream would wait for work outside the capture; wait for it before the capture begins"),
    WEFT_ERROR(
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        "the default stream would wait for a captured stream; use non-blocking streams, or do this before or after"),
    WEFT_ERROR(
        CUDA_ERROR_CAPTURED_EVENT,
        "the event was last recorded in a capture, so nothing was scheduled that could be waited for; use an event "
        "recorded outside, for example after the launch of the graph"),
    WEFT_ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
               "the capture began on another thread; end it there, or begin it in the relaxed mode"),
    WEFT_ERROR(CUDA_ERROR_UNKNOWN, "the driver gives no reason"),
};

const ErrorText *error_text(CUresult code) {
  for (const ErrorText &error : kErrors)
    if (error.code == code) return &error;
  return nullptr;
}

void check(CUresult result, const char *call, const Driver &driver) {
  if (result == CUDA_SUCCESS) return;
  const char *name = nullptr, *meaning = nullptr;
  if (const ErrorText *known = error_text(result)) {
    name = known->name;
    meaning = known->meaning;
  } else {
    if (driver.cuGetErrorName(result, &name) != CUDA_SUCCESS || !name) name = "CUDA_ERROR_UNKNOWN";
    if (driver.cuGetErrorString(result, &meaning) != CUDA_SUCCESS || !meaning)
      meaning = "an error that weft does not know";
  }
  throw DriverError(std::string(call) + ": " + name + " (" + std::to_string(result) + "): " + meaning, name, result);
}

const Driver &driver_by_index(int index) {
  if (index == 0) return cpu_driver();
  if (index != 1)
    throw DriverError("driver " + std::to_string(index) + " does not exist; 0 is the CPU's and 1 is CUDA's",
                      "CUDA_ERROR_INVALID_VALUE", CUDA_ERROR_INVALID_VALUE);
  const char *why = nullptr;
  if (const Driver *driver = cuda_driver(&why)) return *driver;
  throw DriverError(std::string("CUDA can't be used: ") + why, "CUDA_ERROR_NO_DEVICE", CUDA_ERROR_NO_DEVICE);
}

}  // namespace weft
