// A call of an operation of torch with frozen arguments, by the stable C interface of the libtorch that the process has
// loaded: its dispatcher, without Python and the GIL. Nothing of torch is needed to build this.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace weft {

// Memory of the CPU seen as a tensor; `dtype` is torch's number. It must outlive what is called with it.
struct TorchTensor {
  std::uintptr_t data;
  std::vector<std::int64_t> sizes, strides;
  int dtype;
};

// An argument by the type that the schema gives it; `optional` where that type is.
struct TorchArgument {
  enum Kind { kNone, kTensor, kInteger, kFloat, kList } kind = kNone;  // a bool and a dtype are integers
  bool optional = false;
  std::int64_t integer = 0;
  double number = 0;
  TorchTensor tensor;
  std::vector<TorchArgument> items;
};

// Whether operations can be called: false where libtorch lacks the interface.
bool has_torch_calls();

// `name` as in "aten::gather", with all of the schema's arguments. What it gives is copied to `outs`, which are none
// where it works in place. Throws std::runtime_error for what torch refuses, here or when it runs.
std::unique_ptr<Kernel> torch_call(std::string name, std::string overload, std::vector<TorchArgument> arguments,
                                   std::vector<TorchTensor> outs, int num_returns);

// outs = one + alpha * other, which the dispatcher's C interface can't say.
std::unique_ptr<Kernel> torch_add(TorchTensor one, TorchTensor other, double alpha, TorchTensor out);

}  // namespace weft
