// Copies the weights of a linear layer into the layout of its kernel (linear.h).
#pragma once

#include <cstdint>

namespace weft {

// The outputs of `weight` are the rows of a tensor of three dimensions, numbered in order. They become the outputs
// `first`, `first` + 1, ... of `packed`: of panels, or of AMX tiles if `tiled`. The places that no call writes are zero
// before.
struct PackCall {
  const void *weight;
  std::int64_t element;               // bytes: 2 or 4; 2 if `tiled`
  std::int64_t sizes[3], strides[3];  // of the outputs; strides in elements
  std::int64_t inputs;                // side by side
  void *packed;
  std::int64_t first;
  std::int64_t panel_step;  // elements from a panel to the next; a layer with swiglu skips every other panel
  bool tiled;
};
void pack_cpu(const PackCall &call);

}  // namespace weft
