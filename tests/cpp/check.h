// A test is a named function; CHECK counts failures and says where. Each ctest entry runs the tests of one executable
// under one schedule: the first argument is "inline", "worker" (inline, with all that can be handed to the worker),
// "threads", "random" or "ahead".
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "driver/cpu/state.h"

namespace weft::test {

struct Case {
  const char *name;
  void (*run)();
};
inline std::vector<Case> &cases() {
  static std::vector<Case> all;
  return all;
}
struct Add {
  Add(const char *name, void (*run)()) { cases().push_back({name, run}); }
};
inline int &failures() {
  static int count = 0;
  return count;
}
inline cpu::Schedule &schedule() {
  static cpu::Schedule current = cpu::Schedule::kInline;
  return current;
}
inline void report(const char *file, int line, const char *what, long long left, long long right) {
  ++failures();
  std::fprintf(stderr, "%s:%d: %s: %lld, %lld\n", file, line, what, left, right);
}

inline int run(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "inline";
  schedule() = !std::strcmp(name, "threads")  ? cpu::Schedule::kThreads
               : !std::strcmp(name, "random") ? cpu::Schedule::kRandom
               : !std::strcmp(name, "ahead")  ? cpu::Schedule::kAhead
                                              : cpu::Schedule::kInline;
  if (!std::strcmp(name, "worker")) {
    cpu::state().processors = 2;
    cpu::state().least_wake_ns = 0;
  }
  for (const Case &test : cases()) {
    const int before = failures();
    if (cpu::set_schedule(schedule(), 1) != cu::CUDA_SUCCESS) report(test.name, 0, "not idle before the test", 0, 0);
    test.run();
    std::printf("%s %s [%s]\n", failures() == before ? "ok    " : "FAILED", test.name, name);
    std::fflush(stdout);
  }
  return failures() == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace weft::test

#define TEST(name)                                       \
  static void name();                                    \
  static const weft::test::Add add_##name{#name, &name}; \
  static void name()
#define CHECK(condition) \
  ((condition) ? void() : weft::test::report(__FILE__, __LINE__, #condition " does not hold", 0, 1))
#define EQUAL(left, right)                                                                           \
  do {                                                                                               \
    const long long left_ = (long long)(left), right_ = (long long)(right);                          \
    if (left_ != right_) weft::test::report(__FILE__, __LINE__, #left " == " #right, left_, right_); \
  } while (0)
#define OK(call) EQUAL(call, weft::cu::CUDA_SUCCESS)
