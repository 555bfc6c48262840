// A call of a torch operation with frozen arguments, through the dispatcher of the libtorch that the process has loaded
// (its stable C interface), without Python and the GIL. Building this needs nothing of torch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace weft {

// CPU memory as a tensor; `dtype` is torch's number. The memory must outlive the calls that use it.
struct TorchTensor {
  std::uintptr_t data;
  std::vector<std::int64_t> sizes, strides;
  int dtype;
};

// An argument, by its type in the operation's schema; `optional` if that type is.
struct TorchArgument {
  enum Kind { kNone, kTensor, kInteger, kFloat, kList } kind = kNone;  // bools and dtypes are integers
  bool optional = false;
  std::int64_t integer = 0;
  double number = 0;
  TorchTensor tensor;
  std::vector<TorchArgument> items;
};

// Whether operations can be called. False if libtorch lacks the interface.
bool has_torch_calls();

// A call of `name`, as in "aten::gather", with all arguments of its schema. The results are copied to `outs`; there are
// none for an operation that works in place. Throws std::runtime_error if torch refuses, here or when it runs.
std::unique_ptr<Kernel> torch_call(std::string name, std::string overload, std::vector<TorchArgument> arguments,
                                   std::vector<TorchTensor> outs, int num_returns);

// out = left + alpha * right. The dispatcher's C interface cannot express its Scalar argument.
std::unique_ptr<Kernel> torch_add(TorchTensor left, TorchTensor right, double alpha, TorchTensor out);

}  // namespace weft
