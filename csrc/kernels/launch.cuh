// Starting a kernel, and how one follows the other. Apart, and included by <>, so that tests can put a launch on the
// CPU in its place.
//
// A chained kernel (programmatic dependent launch) is started when all blocks of the kernel before it have called
// `let_next_start` or ended. So every thread calls `wait_for_earlier` before it reads or writes what another kernel
// writes: the kernel before is complete then, and its writes are visible. Since that one has waited too, so is
// everything before it, even where the next kernel started as soon as both were running. Where the kernel before is
// not chained, or something else than a kernel, or the device has no such launches, all this changes nothing.
#pragma once

#include <cuda_runtime.h>

#include "kernels/kernel.h"

namespace weft {

__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

__device__ __forceinline__ void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// The first line of a kernel of which nobody reads anything before waiting for it.
__device__ __forceinline__ void begin_chained() {
  let_next_start();
  wait_for_earlier();
}

// Writes the attribute of a chained launch on the current device, where it can be; how many attributes that is.
inline unsigned add_chaining(cudaLaunchAttribute *attribute) {
  int device = 0, major = 0;
  if (!chains_kernels || cudaGetDevice(&device) != cudaSuccess) return 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (major < 9) return 0;
  attribute->id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute->val.programmaticStreamSerializationAllowed = 1;
  return 1;
}

// Enqueues `kernel`, which waits as above, to `stream` of the current device.
template <class... Parameters, class... Arguments>
void launch_kernel(void (*kernel)(Parameters...), dim3 grid, unsigned threads, void *stream,
                   const Arguments &...arguments) {
  cudaLaunchAttribute chaining{};
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = dim3(threads);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &chaining, config.numAttrs = add_chaining(&chaining);
  cudaLaunchKernelEx(&config, kernel, arguments...);
}

// What went wrong with the last launch of this thread, or null.
inline const char *launch_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace weft
