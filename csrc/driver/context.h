// Makes a context current on threads that call CUDA's driver.
//
// torch makes a context current when a thread first uses torch.cuda. A thread that only waits for an event, destroys
// one or launches a host function has no context, and the driver refuses its calls.
#pragma once

#include "driver/driver.h"

namespace weft {

// The device for threads without a context: that of the runtime created last, initially device 0.
void use_device(int ordinal);
int used_device();

// If this thread has no current context, makes the primary context of `used_device()` current, which torch uses too.
// Returns the driver's error code. Succeeds in a callback, where the driver refuses every call.
cu::CUresult ensure_context(const cu::Driver &driver);

}  // namespace weft
