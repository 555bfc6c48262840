// Kernel launches, chained by programmatic dependent launch. It is a separate file, included with <>, so that tests can
// replace it by launches on the CPU.
//
// A chained kernel starts when all blocks of the kernel before it have called `let_next_start` or ended. So every
// thread calls `wait_for_earlier` before it touches memory that another kernel writes. It returns when the previous
// kernel is complete and its writes are visible. The previous kernel has waited in the same way, so this holds for all
// earlier kernels too. If the previous work is an unchained kernel or no kernel, or the device lacks such launches, the
// calls have no effect.
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

// Lets the next kernel start, then waits for the earlier ones. Call it first in a kernel, provided that the next kernel
// also waits before it reads this one's results or writes its inputs.
__device__ __forceinline__ void begin_chained() {
  let_next_start();
  wait_for_earlier();
}

// Writes the attribute of a chained launch if the current device supports it. Returns the number of attributes, 0 or 1.
inline unsigned add_chaining(cudaLaunchAttribute *attribute) {
  int device = 0, major = 0;
  if (!chains_kernels || cudaGetDevice(&device) != cudaSuccess) return 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (major < 9) return 0;
  attribute->id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute->val.programmaticStreamSerializationAllowed = 1;
  return 1;
}

// Enqueues `kernel` on `stream` of the current device. The kernel must call `wait_for_earlier`.
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

// The error of this thread's last launch, or null.
inline const char *launch_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace weft
