// Replaces csrc/kernels/launch.cuh: runs a kernel to its end on CPU threads.
#pragma once

#include <cuda_runtime.h>

namespace weft {

inline void wait_for_earlier() {}
inline void begin_chained() {}

template <class... Parameters, class... Arguments>
void launch_kernel(void (*kernel)(Parameters...), dim3 grid, unsigned threads, void *, const Arguments &...arguments) {
  gridDim = grid;
  for (unsigned b = 0; b < grid.x * grid.y; ++b) {
    cuda_on_cpu::Block block(threads);
    std::vector<std::thread> running;
    for (unsigned t = 0; t < threads; ++t) {
      running.emplace_back([&, t] {
        cuda_on_cpu::block = &block;
        threadIdx = dim3(t);
        blockIdx = dim3(b % grid.x, b / grid.x);
        kernel(arguments...);
      });
    }
    for (std::thread &thread : running) thread.join();
  }
}

inline const char *launch_error() { return nullptr; }

}  // namespace weft
