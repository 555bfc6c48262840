// Copies quantised weights of a linear layer into the panels of its kernel (formats.h).
#pragma once

#include <cstdint>

#include "kernels/layer/formats.h"

namespace weft {

// The outputs of `blocks` are rows of blocks, those of a tensor of three dimensions, numbered in order. They become the
// outputs `first`, `first` + 1, ... of `panels`. The places that no call writes are zero before. Several threads may
// write different outputs of a panel.
struct PackBlocksCall {
  Format format;
  const void *blocks;
  std::int64_t sizes[3], strides[3];  // of the outputs; strides in bytes
  std::int64_t inputs;
  void *panels;
  std::int64_t first;
  std::int64_t panel_step;  // bytes from a panel to the next; gates and ups alternate
};
void pack_blocks_cpu(const PackBlocksCall &call);

}  // namespace weft
