// A context on every thread that calls CUDA's driver.
//
// torch makes a context current when a thread first uses torch.cuda. A thread that only waits for an event, destroys
// one or launches a host function has no context, and the driver refuses its calls.
#pragma once

#include "driver/driver.h"

namespace weft {

// The device of threads without a context: that of the last runtime made, initially device 0.
void use_device(int ordinal);
int used_device();

// Makes the primary context of that device, which torch uses too, current on this thread, unless a context is current.
// Returns the driver's error.
cu::CUresult ensure_context(const cu::Driver &driver);

}  // namespace weft
