// A context on every thread that calls CUDA's driver.
//
// torch makes a context current on a thread when the thread first uses torch.cuda. Threads that only wait for an event,
// destroy one or launch a host function never do, and the driver refuses their calls.
#pragma once

#include "driver/driver.h"

namespace weft {

// The device that threads without a context get: the last one that a runtime was made for, at first device 0.
void use_device(int ordinal);
int used_device();

// Makes the primary context of that device current on this thread, unless some context is; the one that torch uses,
// too. What it returns is an error of the driver's.
cu::CUresult ensure_context(const cu::Driver &driver);

}  // namespace weft
