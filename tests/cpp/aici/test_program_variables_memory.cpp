// Shared variables when any allocation fails: writing, undoing and keeping a step happen completely or not at all.
// Sanitizers check the memory.
#include <cstdlib>
#include <new>
#include <string>

#include "check.h"
#include "shared_variables.h"

namespace {

// The number of further allocations of this thread that succeed; negative: all.
thread_local int allocations_left = -1;

}  // namespace

void *operator new(std::size_t size) {
  void *memory = allocations_left >= 0 && allocations_left-- == 0 ? nullptr : std::malloc(size);
  if (!memory) throw std::bad_alloc();
  return memory;
}
__attribute__((noinline)) void operator delete(void *memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }

namespace {

using weft::aici::Variables;
using weft::test::Shared;

// Whether `work` succeeds if only its first `num_allocations` allocations do.
template <class Work>
bool goes_with(int num_allocations, Work work) {
  allocations_left = num_allocations;
  try {
    work();
  } catch (const std::bad_alloc &) {
    allocations_left = -1;
    return false;
  }
  const bool had_all = allocations_left >= 0;
  allocations_left = -1;
  return had_all;
}

const std::string kLong(100, 'l');

TEST_CASE("a step is taken back whole or not at all") {
  Shared shared;
  Variables::Writes others, step, later;
  for (const char *name : {"a", "b"}) shared.write(name, "Set", kLong, others);
  for (const char *name : {"a", "b", "c"}) shared.write(name, "Append", "x", step);
  for (const char *name : {"a", "b"}) shared.write(name, "Append", "y", later);
  int num_failed = 0;
  while (!goes_with(num_failed, [&] { shared.variables.undo(step); })) {
    ++num_failed;
    for (const char *name : {"a", "b"}) CHECK(shared.get(name) == "3" + kLong + "xy");
    CHECK(shared.get("c") == "1x");
    for (const auto &write : step) CHECK(write->num_holders == 1);
  }
  CHECK(num_failed > 3);
  for (const char *name : {"a", "b"}) CHECK(shared.get(name) == "2" + kLong + "y");
  CHECK(shared.get("c") == "-");
}

TEST_CASE("a write is made whole or not at all") {
  for (const bool is_new : {true, false}) {
    for (const bool joins : {true, false}) {
      Shared shared;
      Variables::Writes before, step;
      if (!is_new) shared.write("a", "Set", kLong, joins ? step : before);
      const std::string old = shared.get("a");
      const std::size_t size = Variables::num_bytes(step);
      std::string answer;
      int num_failed = 0;
      for (;; ++num_failed) {
        if (goes_with(num_failed, [&] { shared.write("a", "Append", kLong, step); })) break;
        // If it failed after the write, undoing the step must remove the write completely.
        if (Variables::num_bytes(step) == size) {
          CHECK(shared.get("a") == old);
        } else {
          shared.variables.undo(step);
          step.clear();
          if (!is_new && joins) shared.write("a", "Set", kLong, step);
          CHECK(shared.get("a") == old);
        }
      }
      CHECK(num_failed > 3);
      shared.variables.undo(step);
      CHECK(shared.get("a") == (is_new || joins ? "-" : old));
    }
  }
}

TEST_CASE("what is kept without memory stands") {
  for (int allocations = 0; allocations < 20; ++allocations) {
    Shared shared;
    Variables::Writes open, one, two, three;
    shared.write("a", "Append", "o", open);
    for (Variables::Writes *writes : {&one, &two, &three}) shared.write("a", "Append", kLong, *writes);
    goes_with(allocations, [&] {
      shared.variables.keep(one);
      shared.variables.keep(three);
      shared.variables.keep(two);
    });
    CHECK(shared.get("a") == "4o" + kLong + kLong + kLong);
    if (allocations % 2) {
      shared.variables.keep(open);
      CHECK(shared.get("a") == "4o" + kLong + kLong + kLong);
    } else {
      shared.variables.undo(open);
      CHECK(shared.get("a") == "3" + kLong + kLong + kLong);
    }
    Variables::Writes more;
    shared.write("a", "Append", "m", more);
    shared.variables.undo(more);
    CHECK(shared.get("a").substr(1) == (allocations % 2 ? "o" : "") + kLong + kLong + kLong);
  }
}

}  // namespace
