// Threads that run programs' code. Python-free.
//
// A program's code needs a stack of known size: wasmtime ends the process where a thread's stack is smaller than the
// engine's limit on the program's. So it never runs on its caller's thread, which may be a driver's callback thread.
#pragma once

#include <cstddef>
#include <functional>

namespace weft {

inline constexpr std::size_t kGuestThreadStack = 8 << 20;

// Runs `work` on a thread of the pool and waits for it; what it throws is thrown here. There are as many threads as
// there were calls at one time. Throws WasmError where no thread can be had.
void run_as_guest(const std::function<void()> &work);

}  // namespace weft
