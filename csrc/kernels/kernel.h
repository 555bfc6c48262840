// A kernel with all its arguments (addresses and sizes) bound. It can run immediately, or any number of times in a
// graph.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

namespace weft {

class Kernel {
 public:
  virtual ~Kernel() = default;
  // Throws std::exception for invalid arguments that only a run can detect, such as a row number out of bounds.
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

// Whether this process launches CUDA kernels with programmatic dependent launch (kernels/launch.cuh).
inline std::atomic<bool> chains_kernels{true};

}  // namespace weft
