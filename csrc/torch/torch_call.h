// A call of a torch operation with frozen arguments, without Python and the GIL. It goes through the stable C interface
// of the dispatcher, in the libtorch that the process has loaded. Building this needs no torch.
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

// An argument of the type in the operation's schema. It is `optional` if that type is optional.
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

// Makes a call of `name`, such as "aten::gather", with all arguments of its schema, which has `num_returns` results.
// The call copies them to `outs`, which is empty for an in-place operation. Throws std::runtime_error if torch refuses
// a tensor; the call throws it if torch refuses the operation.
std::unique_ptr<Kernel> torch_call(std::string name, std::string overload, std::vector<TorchArgument> arguments,
                                   std::vector<TorchTensor> outs, int num_returns);

// out = left + alpha * right. This is a separate function because the dispatcher's C interface cannot pass a Scalar.
std::unique_ptr<Kernel> torch_add(TorchTensor left, TorchTensor right, double alpha, TorchTensor out);

}  // namespace weft
