// Helpers of the bindings of the logits kernels. Addresses and sizes become calls, and a call releases the GIL where it
// takes long enough for that to pay.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "kernels/logits.h"

namespace weft {

constexpr std::int64_t kLogitsToHoldGil = 1 << 17;  // some 20 us of work

template <class T>
T *pointer(std::uintptr_t address) {
  return reinterpret_cast<T *>(address);
}

// Runs without the GIL where `size` is large.
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
