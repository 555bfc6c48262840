// Products of quantised weights with input rows in int8. Internal to this folder.
#pragma once

#include "kernels/layer/panels.h"

namespace weft {

struct Int8Kernels {
  PanelKernel by_format[kNumFormats];  // `times` is null for formats that have none
  RowKernel rows;
};

// Returns the fastest kernels of the chosen instruction set.
const Int8Kernels &int8_kernels();

}  // namespace weft
