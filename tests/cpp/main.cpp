// The main program of each folder's tests: `test_driver [schedule] [doctest options]`. It selects the schedule of the
// CPU driver: "inline" (the default), "threads", "random", "ahead", or "worker", which is "inline" with a worker thread
// that takes every node it may take.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cstring>

#include "check.h"

namespace weft::test {
namespace {

// Gives every test the same schedule and seed, and fails a test if the one before left work in the driver.
struct SetSchedule : doctest::IReporter {
  explicit SetSchedule(const doctest::ContextOptions &) {}
  void test_case_start(const doctest::TestCaseData &) override {
    if (cpu::set_schedule(schedule(), 1) == cu::CUDA_SUCCESS) return;
    FAIL_CHECK("the test before left work in the driver");
  }
  void report_query(const doctest::QueryData &) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats &) override {}
  void test_case_reenter(const doctest::TestCaseData &) override {}
  void test_case_end(const doctest::CurrentTestCaseStats &) override {}
  void test_case_exception(const doctest::TestCaseException &) override {}
  void subcase_start(const doctest::SubcaseSignature &) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData &) override {}
  void log_message(const doctest::MessageData &) override {}
  void test_case_skipped(const doctest::TestCaseData &) override {}
};
REGISTER_LISTENER("schedule", 1, SetSchedule);

void choose_schedule(const char *name) {
  schedule() = !std::strcmp(name, "threads")  ? cpu::Schedule::kThreads
               : !std::strcmp(name, "random") ? cpu::Schedule::kRandom
               : !std::strcmp(name, "ahead")  ? cpu::Schedule::kAhead
                                              : cpu::Schedule::kInline;
  if (std::strcmp(name, "worker") != 0) return;
  cpu::state().costs.processors = 2;
  cpu::state().costs.least_wake_ns = 0;
}

}  // namespace
}  // namespace weft::test

int main(int argc, char **argv) {
  if (argc > 1 && argv[1][0] != '-') weft::test::choose_schedule(argv[1]);
  doctest::Context context(argc, argv);
  return context.run();
}
