#include "torch/torch_call.h"

#include <dlfcn.h>

#include <cstring>
#include <stdexcept>
#include <utility>

namespace weft {
namespace {

using Value = std::uint64_t;  // torch's StableIValue
using Handle = void *;        // torch's AtenTensorHandle
using List = void *;
using Error = std::int32_t;

constexpr std::uint64_t kBuiltFor = std::uint64_t{2} << 56 | std::uint64_t{11}
                                                                 << 48;  // the stable interface of torch 2.11

struct Torch {
  Error (*call)(const char *name, const char *overload, Value *stack, std::uint64_t built_for);
  Error (*from_blob)(void *data, std::int64_t dims, const std::int64_t *sizes, const std::int64_t *strides,
                     std::int64_t offset, std::int32_t dtype, std::int32_t device, std::int32_t index, Handle *out);
  Error (*again)(Handle tensor, Handle *out);
  Error (*drop)(Handle tensor);
  Error (*new_list)(std::size_t size, List *out);
  Error (*append)(List list, Value value);
  Error (*add)(Handle one, Handle other, double alpha, Handle *out);
  const char *(*what)();
  bool found;

  Torch() {
    const auto find = [this](auto &function, const char *symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(RTLD_DEFAULT, symbol));
      if (!function && library()) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library(), symbol));
      }
      return function != nullptr;
    };
    found = find(call, "torch_call_dispatcher") && find(from_blob, "aoti_torch_create_tensor_from_blob") &&
            find(again, "aoti_torch_new_tensor_handle") && find(drop, "aoti_torch_delete_tensor_object") &&
            find(new_list, "torch_new_list_reserve_size") && find(append, "torch_list_push_back") &&
            find(add, "aoti_torch_cpu_add_Tensor");
    find(what, "torch_exception_get_what_without_backtrace");
  }

 private:
  // Returns the libtorch that the process has loaded, or null. It must be found by name: Python loads it with private
  // symbols.
  static void *library() {
    static void *const loaded = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_NOW | RTLD_LOCAL);
    return loaded;
  }
};

const Torch &torch() {
  static const Torch it;
  return it;
}

void must(Error error, const std::string &what) {
  if (error == 0) return;
  const char *why = torch().what ? torch().what() : nullptr;
  throw std::runtime_error(what + ": " + (why ? why : "torch refused it"));
}

// A tensor over frozen memory. It is made outside inference mode, so that any thread may write it.
class Tensor {
 public:
  explicit Tensor(const TorchTensor &of) {
    must(torch().from_blob(reinterpret_cast<void *>(of.data), static_cast<std::int64_t>(of.sizes.size()),
                           of.sizes.data(), of.strides.data(), 0, of.dtype, 0, -1, &handle_),
         "a tensor of a graph");
  }
  Tensor(Tensor &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Tensor(const Tensor &) = delete;
  Tensor &operator=(const Tensor &) = delete;
  ~Tensor() {
    if (handle_) torch().drop(handle_);
  }

  Handle handle() const { return handle_; }
  Value as_argument() const {  // the call takes ownership
    Handle again = nullptr;
    must(torch().again(handle_, &again), "a tensor of a graph");
    return reinterpret_cast<Value>(again);
  }

 private:
  Handle handle_ = nullptr;
};

struct Frozen {
  TorchArgument argument;
  std::vector<Tensor> tensor;  // one, if the argument is a tensor
  std::vector<Frozen> items;

  explicit Frozen(TorchArgument given) : argument(std::move(given)) {
    if (argument.kind == TorchArgument::kTensor) tensor.emplace_back(argument.tensor);
    for (TorchArgument &item : argument.items) items.emplace_back(std::move(item));
  }

  Value value() const {
    if (argument.kind == TorchArgument::kNone) return 0;
    const Value plain = plain_value();
    return argument.optional ? reinterpret_cast<Value>(new Value(plain)) : plain;  // which the call frees
  }

 private:
  Value plain_value() const {
    Value bits = 0;
    switch (argument.kind) {
      case TorchArgument::kTensor:
        return tensor.front().as_argument();
      case TorchArgument::kFloat:
        std::memcpy(&bits, &argument.number, sizeof argument.number);
        return bits;
      case TorchArgument::kList: {
        List list = nullptr;
        must(torch().new_list(items.size(), &list), "a list of arguments");
        for (const Frozen &item : items) must(torch().append(list, item.value()), "a list of arguments");
        return reinterpret_cast<Value>(list);
      }
      default:
        std::memcpy(&bits, &argument.integer, sizeof argument.integer);
        return bits;
    }
  }
};

// to = from, for any strides and dtypes.
void copy(const Tensor &to, Handle from) {
  Handle source = nullptr;
  must(torch().again(from, &source), "a result");
  Value stack[3] = {to.as_argument(), reinterpret_cast<Value>(source), 0};
  must(torch().call("aten::copy_", "", stack, kBuiltFor), "copying a result");
  torch().drop(reinterpret_cast<Handle>(stack[0]));
}

class Call final : public Kernel {
 public:
  Call(std::string name, std::string overload, std::vector<TorchArgument> arguments,
       const std::vector<TorchTensor> &outs, int num_returns)
      : name_(std::move(name)), overload_(std::move(overload)), num_returns_(static_cast<std::size_t>(num_returns)) {
    for (TorchArgument &argument : arguments) arguments_.emplace_back(std::move(argument));
    for (const TorchTensor &out : outs) outs_.emplace_back(out);
  }

  void run() const override {
    std::vector<Value> stack(std::max(arguments_.size(), num_returns_));
    for (std::size_t i = 0; i < arguments_.size(); ++i) stack[i] = arguments_[i].value();
    must(torch().call(name_.c_str(), overload_.c_str(), stack.data(), kBuiltFor), name_);
    for (std::size_t i = 0; i < num_returns_; ++i) {
      const auto result = reinterpret_cast<Handle>(stack[i]);
      if (i < outs_.size()) copy(outs_[i], result);
      torch().drop(result);
    }
  }

 private:
  const std::string name_, overload_;
  const std::size_t num_returns_;
  std::vector<Frozen> arguments_;
  std::vector<Tensor> outs_;
};

class Addition final : public Kernel {
 public:
  Addition(const TorchTensor &one, const TorchTensor &other, double alpha, const TorchTensor &out)
      : one_(one), other_(other), out_(out), alpha_(alpha) {}

  void run() const override {
    Handle sum = nullptr;
    must(torch().add(one_.handle(), other_.handle(), alpha_, &sum), "aten::add");
    copy(out_, sum);
    torch().drop(sum);
  }

 private:
  const Tensor one_, other_, out_;
  const double alpha_;
};

}  // namespace

bool has_torch_calls() { return torch().found; }

std::unique_ptr<Kernel> torch_call(std::string name, std::string overload, std::vector<TorchArgument> arguments,
                                   std::vector<TorchTensor> outs, int num_returns) {
  return std::make_unique<Call>(std::move(name), std::move(overload), std::move(arguments), outs, num_returns);
}

std::unique_ptr<Kernel> torch_add(TorchTensor one, TorchTensor other, double alpha, TorchTensor out) {
  return std::make_unique<Addition>(one, other, alpha, out);
}

}  // namespace weft
