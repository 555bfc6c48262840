// Starting a kernel. Apart, and included by <>, so that tests can put a launch on the CPU in its place.
#pragma once

#include <cuda_runtime.h>

namespace weft {

// Enqueues `kernel` to `stream` of the current device.
template <class... Parameters, class... Arguments>
void launch_kernel(void (*kernel)(Parameters...), dim3 grid, unsigned threads, void *stream,
                   const Arguments &...arguments) {
  kernel<<<grid, threads, 0, static_cast<cudaStream_t>(stream)>>>(arguments...);
}

// What went wrong with the last launch of this thread, or null.
inline const char *launch_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace weft
