// A kernel with all its arguments (addresses and sizes) bound. It can run at once, and again in a graph.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

namespace weft {

class Kernel {
 public:
  virtual ~Kernel() = default;
  // Throws std::exception for arguments whose fault shows only when it runs, as a row number out of bounds.
  virtual void run() const = 0;
};

template <class F>
class KernelOf final : public Kernel {
 public:
  explicit KernelOf(F function) : function_(std::move(function)) {}
  void run() const override { function_(); }

 private:
  F function_;
};

template <class F>
std::unique_ptr<Kernel> kernel_of(F function) {
  return std::make_unique<KernelOf<F>>(std::move(function));
}

// Whether CUDA kernels of this process may start before the kernel before them is done (kernels/launch.cuh).
inline std::atomic<bool> chains_kernels{true};

}  // namespace weft
