// Failures of callbacks, and skipping of later callbacks after a failure.
//
// A domain is a set of host functions that fail together: those of one capture, or those launched eagerly on one stream
// of one driver. After a task fails, its domain skips all later host functions until the failure is raised. After that,
// a stream still skips those launched before the raise, and a capture still skips the rest of the failed replay. Device
// work and native tasks that are not `skippable` always run.
//
// So a captured domain skips the host functions of all replays until the failure is raised, not only those of the
// failed replay. That is on purpose: the failed function may have left its data half changed, and the functions of
// later replays would work on that data. Few replays are affected in practice, because every launch, wait and replay of
// weft raises the failure (docs/hostfunc.md, rules 13 and 15).
//
// A scope decides which thread a failure is raised in. A domain belongs to the scope of the thread that launched its
// first host function, and its failures are raised in that scope only. So an engine's failures end its own requests,
// and a failure of a user's callback does not.
#pragma once

#include <Python.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "driver/driver.h"

namespace weft {

struct Domain {
  const cu::Driver *driver;
  bool captured;
  std::uint64_t scope;
  std::atomic<std::uint64_t> next{0};        // eager: the ordinal of the next launch
  std::atomic<std::uint64_t> skip_below{0};  // executions with a lower ordinal are skipped
  std::atomic<std::int64_t> polled{0};       // tasks of the capture that have no host node (driver/polling/polled.h)

  Domain(const cu::Driver *d, bool c, std::uint64_t s) : driver(d), captured(c), scope(s) {}
  bool skips(std::uint64_t ordinal) const { return ordinal < skip_below.load(std::memory_order_acquire); }
};

// Returns the domain of `stream`'s eager host functions, or of the capture with this id. The object stays the same as
// long as one of its tasks or failures lives.
std::shared_ptr<Domain> stream_domain(const cu::Driver &driver, cu::CUstream stream);
std::shared_ptr<Domain> capture_domain(const cu::Driver &driver, std::uint64_t id);

// Sets the calling thread's scope and returns the one before; 0 is the scope of all threads that set none.
std::uint64_t exchange_scope(std::uint64_t scope);

// Records that execution `ordinal` of `task` failed with Python's current exception. GIL held.
void fail_with_current_exception(const std::shared_ptr<Domain> &domain, std::uint64_t ordinal, const std::string &task);
// Records a failure with the text of a C++ exception. Needs no GIL.
void fail_with_text(const std::shared_ptr<Domain> &domain, std::uint64_t ordinal, const std::string &task,
                    const std::string &text);

// Raises the first failure of `driver` (null: of any) in the thread's scope, with the others as notes. GIL held;
// throws nb::python_error.
void raise_failures(const cu::Driver *driver);

// Prints every unraised failure with its traceback. GIL held.
void print_failures();

}  // namespace weft
