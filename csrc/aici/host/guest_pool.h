// Guest threads, which run programs' code. Python-free.
//
// A program needs a thread with a stack of known size: wasmtime ends the process if the stack is smaller than the
// engine's stack limit. So programs never run on the caller's thread, which may be a driver's callback thread.
#pragma once

#include <cstddef>
#include <functional>

namespace weft::aici {

inline constexpr std::size_t kGuestThreadStack = 8 << 20;

// Runs `work` on a guest thread and waits for it. Adds its processor time to this thread's `worked_for_thread_ns`, and
// rethrows its exception. The pool grows to the largest number of concurrent calls. Throws ProgramError if it can't
// start its first thread.
void run_as_guest(const std::function<void()> &work);

}  // namespace weft::aici
