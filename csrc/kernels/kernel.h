// A call of a kernel with all its arguments: addresses and sizes. It can be run at once, and again by a graph.
#pragma once

#include <memory>
#include <utility>

namespace weft {

class Kernel {
 public:
  virtual ~Kernel() = default;
  // Throws std::exception for arguments whose fault only shows when it runs.
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

}  // namespace weft
