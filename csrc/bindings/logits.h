// Helpers of the bindings of kernels: addresses and sizes become arguments, and a long call releases the GIL.
//
// Kernels get tensors as addresses, not as nb::ndarray: DLPack costs some microseconds for each, an address 0.1 us.
// `weft.ops` checks shapes and dtypes before.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "kernels/logits.h"

namespace weft {

constexpr std::int64_t kLogitsToHoldGil = 1 << 17;  // more logits release the GIL: some 20 us of work

template <class T>
T *pointer(std::uintptr_t address) {
  return reinterpret_cast<T *>(address);
}

// Runs `fn`, without the GIL if `size` is large.
template <class F>
auto run(std::int64_t size, F &&fn) {
  std::optional<nanobind::gil_scoped_release> release;
  if (size > kLogitsToHoldGil) release.emplace();
  return fn();
}

inline Logits logits_of(std::uintptr_t data, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride) {
  return {pointer<void>(data), static_cast<DType>(dtype), rows, vocab, stride};
}

}  // namespace weft
