// Arrays in host memory as arguments. Pass pinned tensors as `tensor.numpy()`, because DLPack may give pinned memory
// the label of another device.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <initializer_list>
#include <string>

namespace weft {

// An array argument. Bind it with `.noconvert()`: a conversion would make a copy, and writes to it would be lost.
template <class T, std::size_t Dimensions>
using HostArray = nanobind::ndarray<T, nanobind::ndim<Dimensions>, nanobind::c_contig, nanobind::device::cpu>;

// Returns the array's data. Raises ValueError unless the array has this shape.
template <class... Kind>
auto *host_data(const nanobind::ndarray<Kind...> &array, const char *name, std::initializer_list<std::size_t> shape) {
  bool fits = true;
  std::size_t dimension = 0;
  std::string wanted;
  for (const std::size_t size : shape) {
    fits = fits && array.shape(dimension++) == size;
    wanted += (wanted.empty() ? "" : ", ") + std::to_string(size);
  }
  if (!fits) throw nanobind::value_error((std::string(name) + " is not an array [" + wanted + "]").c_str());
  return array.data();
}

}  // namespace weft
