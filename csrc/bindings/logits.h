// Helpers for the bindings of kernels: they turn addresses and sizes into arguments, and release the GIL for long
// calls.
//
// Tensors are passed as addresses, not as nb::ndarray: DLPack costs a few microseconds per tensor, an address 0.1 us.
// `weft.ops` has checked shapes and dtypes before.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "kernels/logits.h"

namespace weft {

constexpr std::int64_t kLogitsToHoldGil = 1 << 17;  // above this size, about 20 us of work, a call releases the GIL

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
