// Support for running programs: watching their written pages, and guest threads. Run it under sanitizers too.
#include <sys/mman.h>

#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "aici/base/limits.h"
#include "aici/base/written_pages.h"
#include "aici/host/guest_pool.h"
#include "check.h"

namespace {

using weft::aici::ProgramError;

// Passes without a check if the kernel does not report written pages.
TEST_CASE("pages that were written are known") {
  constexpr std::size_t kPage = 4096, kPages = 700;
  auto *memory = static_cast<std::uint8_t *>(
      mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::mt19937 random(4);
  for (std::size_t page = 0; page < kPages; page += 2) memory[page * kPage] = 1;
  weft::aici::WrittenPages written;
  std::vector<weft::aici::WrittenPages::Range> ranges;
  CHECK(!written.take(ranges));
  written.watch(memory + 1, kPage);
  CHECK(!written.take(ranges));
  written.watch(memory, kPages * kPage);
  int known = 0;
  for (int round = 0; round < 60; ++round) {
    std::set<std::size_t> pages;
    for (unsigned n = random() % (round == 30 ? 2000 : 200); n > 0; --n) {
      pages.insert(random() % kPages);
      ++memory[*pages.begin() * kPage + random() % kPage];
      for (const std::size_t page : {*pages.begin(), *pages.rbegin()}) ++memory[page * kPage];
    }
    for (const std::size_t page : pages) ++memory[page * kPage + 9];
    ranges.clear();
    if (!written.take(ranges)) break;
    std::set<std::size_t> told;
    for (const auto &range : ranges)
      for (std::size_t at = range.begin; at < range.end; at += kPage) told.insert(at / kPage);
    CHECK(told == pages);
    ++known;
  }
  CHECK((known == 0 || known == 60));
  written.stop();
  CHECK(!written.take(ranges));
  munmap(memory, kPages * kPage);
}

TEST_CASE("guests run elsewhere and their errors come back") {
  std::vector<std::thread> callers;
  std::vector<int> sums(8);
  for (int caller = 0; caller < 8; ++caller)
    callers.emplace_back([caller, &sums] {
      for (int i = 0; i < 200; ++i) {
        const auto me = std::this_thread::get_id();
        try {
          weft::aici::run_as_guest([&] {
            if (std::this_thread::get_id() == me) sums[caller] = -1000;
            if (i % 10 == 0) throw ProgramError("no");
            ++sums[caller];
          });
        } catch (const ProgramError &) {
          sums[caller] += 2;
        }
      }
    });
  for (std::thread &caller : callers) caller.join();
  for (const int sum : sums) CHECK(sum == 220);
}

}  // namespace
