// Host functions in captured graphs without host nodes. The stream writes a request word and waits for an answer word.
// A native thread polls the request words, runs the function and writes the answer.
//
// Three memory operations (write, wait, write) replace the node of cuLaunchHostFunc. The order is the same, but a round
// trip takes a few microseconds, while waking the driver's callback thread takes tens. CUDA does not know of the
// dependency, so the function must not wait for work that is enqueued later. It must not call the driver or throw.
//
// One thread runs all these functions, one at a time. It spins while runs are expected and sleeps otherwise. A forked
// child starts its own thread.
//
// A call moves through these states:
//
//   state      request  answer  moved on by
//   free       0        0       a thread that captures: `new_polled_call` -> idle
//   idle       0        0       the stream: writes the request -> requested; or `free_polled_call` -> free
//   requested  1        0       the polling thread: clears the request, runs the function -> running
//   running    0        0       the polling thread: writes the answer -> answered
//   answered   0        1       the stream, which waited for it: clears the answer -> idle
//
// `expect_polled` counts runs up before the launch that requests them, and the polling thread counts each down after
// its answer. While the count is above 0, the thread keeps polling.
#pragma once

#include <cstdint>

#include "driver/driver.h"

namespace weft {

// A function in a graph, and its two words.
struct PolledCall;

// Whether the driver supports polled calls on the device in use. If not, `*why` (if given) is set to a static text with
// the reason.
bool can_poll(const cu::Driver &driver, const char **why = nullptr);

// Starts the polling thread, and allocates memory for more polled calls if little is free. Call it before a capture,
// because a driver may refuse allocations during one.
cu::CUresult prepare_polling(const cu::Driver &driver);

// Makes a call of `fn(data)`. Returns null if the memory of `prepare_polling` is used up.
PolledCall *new_polled_call(const cu::Driver &driver, cu::CUhostFn fn, void *data);

// Frees a call, after the last run of every graph that has it. Takes no lock.
void free_polled_call(PolledCall *call);

// Captures the three operations, labelled with `name`. If it returns CUDA_ERROR_NOT_SUPPORTED, nothing was captured.
cu::CUresult launch_polled(cu::CUstream stream, const PolledCall &call, const char *name);

// Announces that the next launch will run `runs` polled calls. A negative number takes back an announcement whose
// launch failed. An unannounced run may start up to a tenth of a second late.
void expect_polled(const cu::Driver &driver, std::int64_t runs);

// Waits at most `seconds` for the calls of CUDA graphs in flight. Returns whether all were answered. The polling thread
// runs on until the process exits. A task that must no longer start refuses by itself (hostfunc/host_task.cpp), but
// its call is still answered, so that no device waits for it.
bool drain_polled(double seconds);

}  // namespace weft
