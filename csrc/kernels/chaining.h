// Whether CUDA kernels may start before the kernel before them is done; they wait for it themselves.
#pragma once

#include <atomic>

namespace weft {

inline std::atomic<bool> chains_kernels{true};  // of the process

}  // namespace weft
