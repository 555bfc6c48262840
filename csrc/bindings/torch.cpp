// torch operations as kernels, for Python. `weft.runtime.torch_nodes` translates torch calls to them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings/bind.h"
#include "torch/torch_call.h"

namespace nb = nanobind;

namespace weft {

void bind_torch(nb::module_ &m) {
  m.def("has_torch_calls", &has_torch_calls);
  nb::class_<TorchTensor>(m, "TorchTensor")
      .def("__init__", [](TorchTensor *self, std::uintptr_t data, std::vector<std::int64_t> sizes,
                          std::vector<std::int64_t> strides,
                          int dtype) { new (self) TorchTensor{data, std::move(sizes), std::move(strides), dtype}; });
  nb::class_<TorchArgument>(m, "TorchArgument")
      .def_static("none", [] { return TorchArgument{}; })
      .def_static("integer",
                  [](std::int64_t value, bool optional) {
                    TorchArgument argument;
                    argument.kind = TorchArgument::kInteger, argument.integer = value, argument.optional = optional;
                    return argument;
                  })
      .def_static("number",
                  [](double value, bool optional) {
                    TorchArgument argument;
                    argument.kind = TorchArgument::kFloat, argument.number = value, argument.optional = optional;
                    return argument;
                  })
      .def_static("tensor",
                  [](TorchTensor tensor, bool optional) {
                    TorchArgument argument;
                    argument.kind = TorchArgument::kTensor, argument.optional = optional;
                    argument.tensor = std::move(tensor);
                    return argument;
                  })
      .def_static("list", [](std::vector<TorchArgument> items, bool optional) {
        TorchArgument argument;
        argument.kind = TorchArgument::kList, argument.optional = optional;
        argument.items = std::move(items);
        return argument;
      });
  m.def("torch_call", &torch_call);
  m.def("torch_add", &torch_add);
}

}  // namespace weft
