// Host functions of captured graphs without host nodes: the stream writes a word, a native thread that polls runs the
// function and writes another word, for which the stream waits.
//
// Three memory operations (write, wait, write) in the place of what cuLaunchHostFunc captures: the same order, but a
// round trip of some microseconds, where waking the driver's thread for callbacks takes tens. CUDA does not see that
// order, so the function may depend on nothing that a stream does later; it must not call the driver, nor throw.
//
// One thread runs them all, one at a time. It spins while runs are expected, and sleeps else. A process that was forked
// has one of its own.
#pragma once

#include <cstdint>

#include "driver/driver.h"

namespace weft {

// A function in a graph, and its two words.
struct PolledCall;

// Whether the driver can, on the device in use; else `*why` (if given) is set to a static text.
bool can_poll(const cu::Driver &driver, const char **why = nullptr);

// Makes room for the calls of some graphs; before a capture, in which a driver may refuse to give memory.
cu::CUresult prepare_polling(const cu::Driver &driver);

// A call of `fn(data)`; null where there is no room left for it.
PolledCall *new_polled_call(const cu::Driver &driver, cu::CUhostFn fn, void *data);

// After the last run of every graph that has it. Takes no lock.
void free_polled_call(PolledCall *call);

// Captures the three operations, named after `name`. Where the first is CUDA_ERROR_NOT_SUPPORTED, nothing was.
cu::CUresult launch_polled(cu::CUstream stream, const PolledCall &call, const char *name);

// So many more calls will be run, by a launch that is about to follow; fewer, if it failed. A run that nobody expected
// may wait for a tenth of a second.
void expect_polled(const cu::Driver &driver, std::int64_t runs);

// Waits at most `seconds` for what CUDA's graphs in flight still call; whether all of it was answered. The thread goes
// on until the process is gone: what must not start at its end refuses by itself (hostfunc/host_task.cpp), and is
// answered all the same, so that no device waits for it.
bool drain_polled(double seconds);

}  // namespace weft
