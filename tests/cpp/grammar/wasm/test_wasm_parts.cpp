// What stands between programs of strangers and the process, as far as it needs no program: reading their JSON, the
// variables that they share, what of their memory was written, and the threads that run them. Sanitizers watch.
#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "grammar/wasm/base/code.h"
#include "grammar/wasm/base/error.h"
#include "grammar/wasm/base/json.h"
#include "grammar/wasm/base/written_pages.h"
#include "grammar/wasm/host/guest_pool.h"
#include "grammar/wasm/host/variables.h"

namespace {

// How many more allocations of this thread succeed; negative: all.
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

using weft::JsonValue;
using weft::WasmError;
using weft::WasmLimits;
using weft::WasmVariables;

const char *kResult =
    R"({"branches":[{"sample_mask":7,"temperature":null,"splices":[{"when_sampled":[1,2.5e1,-0],"ff_tokens":[]},)"
    R"({"x":"\u00e4\ud83d\ude00\n","y":[true,false,null]}]}]})";

bool reads(const std::string &text) {
  try {
    weft::parse_json(text, "it");
    return true;
  } catch (const WasmError &) {
    return false;
  }
}

TEST(json_is_read) {
  const JsonValue result = weft::parse_json(kResult, "it");
  const JsonValue &branch = result.find("branches")->items[0];
  EQUAL(branch.find("sample_mask")->number, 7);
  CHECK(branch.find("temperature") == nullptr);
  const JsonValue &splices = *branch.find("splices");
  EQUAL(splices.items[0].find("when_sampled")->numbers.size(), 3);
  EQUAL(splices.items[0].find("when_sampled")->numbers[1], 25);
  EQUAL(splices.items[0].find("ff_tokens")->kind, JsonValue::kNumbers);
  CHECK(splices.items[1].find("x")->text == "ä😀\n");
  EQUAL(splices.items[1].find("y")->items.size(), 3);
  CHECK(weft::parse_json(R"("a\"\\\u0001z")", "it").text == "a\"\\\x01z");
  CHECK(weft::parse_json(R"({"a":null,"a":1,"a":2})", "it").find("a") == nullptr);
  CHECK(weft::parse_json("18446744073709551615", "it").number == 18446744073709551615.0);
}

std::string problem_of(const std::string &text) {
  try {
    weft::parse_json(text, "it");
    return "none";
  } catch (const WasmError &error) {
    return std::string(error.what()).substr(std::string("it is not JSON that can be read: it ").size());
  }
}

TEST(problems_of_json_are_told) {
  const std::pair<std::string, const char *> kProblems[] = {
      {"", "ends too early at byte 0"},
      {"[1,", "ends too early at byte 3"},
      {"{\"a\":\"b", "ends too early at byte 7"},
      {"[1,?]", "has an unexpected character at byte 3"},
      {"\"\xff\"", "has an unexpected character at byte 1"},
      {std::string("[]\0", 3), "has an unexpected character at byte 2"},
      {"[] ?", "goes on after its end at byte 3"},
      {"1 2", "goes on after its end at byte 2"},
      {"[1e999]", "has a number that can't be read at byte 5"},
      {"[1,[]]", "mixes numbers with other values"},
      {"[[],1]", "mixes numbers with other values"},
      {std::string(18, '['), "nests too deep"},
  };
  for (const auto &[text, problem] : kProblems)
    if (problem_of(text) != problem) weft::test::report(__FILE__, __LINE__, problem_of(text).c_str(), 0, 1);
}

TEST(json_is_bounded) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  CHECK(reads(nested(17)) && !reads(nested(18)));
  const auto list = [](int count, const std::string &item) {
    std::string text = "[";
    for (int i = 1; i < count; ++i) text += item + ",";
    return text + item + "]";
  };
  CHECK(reads(list(16383, "[1,2]")) && !reads(list(16384, "[1,2]")));
  CHECK(reads(list(5461, R"({"a":1,"b":[2]})")) && !reads(list(5462, R"({"a":1,"b":[2]})")));
  CHECK(reads(list(100000, "1")));
}

TEST(json_that_is_none_is_refused) {
  for (const char *text : {"",
                           " ",
                           "{",
                           "[1,",
                           "[1,]",
                           "{\"a\"}",
                           "{\"a\":}",
                           "{a:1}",
                           "01",
                           "\"\n\"",
                           "\"\xff\"",
                           "\"\\q\"",
                           "\"\\u12",
                           "nul",
                           "inf",
                           "nan",
                           "1e999",
                           "+1",
                           "[1,\"a\"]",
                           "1 2",
                           "\"\\ud800\"",
                           "\"\\ud800\\u0041\"",
                           "\"abc"})
    if (reads(text)) weft::test::report(__FILE__, __LINE__, text, 0, 1);
}

TEST(broken_json_does_no_harm) {
  std::mt19937 random(1);
  const std::string whole = kResult;
  for (int i = 0; i < 20000; ++i) {
    std::string text = whole.substr(0, random() % 8 ? whole.size() : random() % whole.size());
    for (unsigned n = random() % 4; n > 0 && !text.empty(); --n)
      text[random() % text.size()] = "{}[]\",:\\u019e-n "[random() % 16];
    reads(text);
  }
}

std::string change_in(const std::vector<int> &bytes) {
  try {
    return weft::table_change(std::string(bytes.begin(), bytes.end()));
  } catch (const WasmError &) {
    return "error";
  }
}

TEST(changes_of_tables_are_found) {
  // Behind locals: 1 group of 2 i32.
  const auto behind = [](std::vector<int> code) {
    code.insert(code.begin(), {1, 2, 0x7F});
    return change_in(code);
  };
  CHECK(behind({0x41, 0, 0xD0, 0x70, 0x26, 0, 0x0B}) == "table.set");
  CHECK(behind({0xFC, 12, 0, 0, 0x0B}) == "table.init");
  CHECK(behind({0xFC, 0x8E, 0, 0, 0, 0x0B}) == "table.copy");  // its number in two bytes
  CHECK(behind({0xFC, 15, 0, 0x0B}) == "table.grow");
  CHECK(behind({0xFC, 17, 0, 0x0B}) == "table.fill");
  // The same bytes where they are no instructions.
  CHECK(behind({0x41, 0x26, 0x42, 0xFC, 0x0C, 0x43, 0xFC, 12, 0x26, 0x26, 0x44, 0x26, 1, 2, 3, 4, 5, 6, 0x26, 0x0B})
            .empty());
  CHECK(behind({0x0E, 2, 0x26, 0x26, 0x26, 0x1C, 1, 0x7F, 0x11, 0x26, 0x80, 0x80, 0x80, 0x80, 0, 0x28, 2, 0x26, 0x0B})
            .empty());
  CHECK(behind({0xFD, 12, 0x26, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0x26, 0xFD, 84, 0, 0x26, 0x26, 0x0B})
            .empty());
  CHECK(behind({0xFC, 10, 0x26, 0x26, 0xFC, 11, 0x26, 0xFC, 16, 0x26, 0x0B}).empty());
  for (const std::vector<int> &broken :
       {std::vector<int>{0x41}, {0x44, 0, 0}, {0x12, 0}, {0x0E, 0xFF, 0xFF, 0xFF, 0x7F}})
    CHECK(behind(broken) == "error");
}

TEST(broken_code_does_no_harm) {
  std::mt19937 random(2);
  for (int i = 0; i < 20000; ++i) {
    std::vector<int> bytes(random() % 40);
    for (int &byte : bytes) byte = static_cast<int>(random() % 256);
    change_in(bytes);
  }
}

struct Shared {
  WasmVariables variables;
  WasmLimits limits;

  std::string write(const char *name, const char *op, const std::string &value, WasmVariables::Writes &writes,
                    WasmVariables::Origin origin = {0, 0}) {
    std::string hex;
    for (const char c : value) hex += {"0123456789abcdef"[c >> 4 & 15], "0123456789abcdef"[c & 15]};
    return variables.command(
        std::string(R"({"WriteVar":{"name":")") + name + R"(","op":")" + op + R"(","value":")" + hex + "\"}}", limits,
        writes, origin);
  }
  // "-" where there is none; its version before its value.
  std::string get(const char *name) {
    const auto found = variables.get(name);
    return found ? std::to_string(found->version) + *found->bytes : "-";
  }
};

TEST(what_a_sequence_wrote_beyond_a_text_is_left_out) {
  Shared shared;
  WasmVariables::Writes writes[5];
  shared.write("a", "Append", "A", writes[0], {1, 3});
  shared.write("a", "Append", "B", writes[1], {1, 4});
  shared.write("a", "Append", "C", writes[2], {2, 9});
  shared.write("b", "Set", "D", writes[3], {1, 5});
  const auto text_at = [&](std::uint32_t sequence, std::int64_t num_tokens) {
    std::string text;
    for (const auto &[name, value] : shared.variables.values_without({sequence, num_tokens}))
      text += name + std::to_string(value.version) + *value.bytes;
    return text;
  };
  CHECK(text_at(1, 5) == "a3ABCb1D");
  CHECK(text_at(1, 4) == "a3ABC");
  CHECK(text_at(1, 3) == "a2AC");
  CHECK(text_at(1, 2) == "a1C");
  CHECK(text_at(2, 8) == "a2ABb1D");
  CHECK(shared.get("a") == "3ABC");
  shared.variables.undo(writes[1]);
  CHECK(text_at(1, 3) == "a2AC");
  shared.write("a", "Set", "E", writes[4], {2, 10});
  CHECK(text_at(2, 9) == "a2ACb1D");
}

TEST(variables_are_taken_back) {
  Shared shared;
  WasmVariables::Writes first, second;
  CHECK(shared.write("a", "Append", "AB", first) == R"({"WriteVar":{"version":1}})");
  shared.write("a", "Append", "C", second);
  shared.write("b", "Append", "D", second);
  shared.write("a", "Append", "E", second);
  EQUAL(second.size(), 2);
  CHECK(shared.get("a") == "3ABCE");
  shared.variables.undo(second);
  CHECK(shared.get("a") == "1AB" && shared.get("b") == "-");
  shared.variables.undo(first);
  CHECK(shared.get("a") == "-");
}

TEST(what_others_wrote_since_stands) {
  Shared shared;
  WasmVariables::Writes one, two, three;
  shared.write("a", "Set", "x", one);
  shared.write("a", "Append", "y", two);
  shared.write("a", "Append", "z", one);
  shared.variables.undo(one);  // neither x nor z is seen behind it
  CHECK(shared.get("a") == "1y");
  shared.write("a", "Set", "new", one = {});
  shared.variables.undo(two);
  CHECK(shared.get("a") == "1new");
  // Its number came before: the write of another has it now.
  shared.write("a", "Set", "mine", two = {});
  shared.variables.undo(two);
  shared.write("a", "Set", "theirs", three);
  shared.variables.undo(one);
  CHECK(shared.get("a") == "1theirs");
  shared.variables.keep(three);
  CHECK(shared.get("a") == "1theirs");
}

TEST(copies_of_a_sequence_share_what_was_written_before) {
  Shared shared;
  WasmVariables::Writes both;
  shared.write("a", "Set", "x", both);
  shared.variables.share(both);
  shared.variables.undo(both);
  CHECK(shared.get("a") == "1x");
  shared.variables.undo(both);
  CHECK(shared.get("a") == "-");
  shared.write("a", "Set", "x", both = {});
  shared.variables.share(both);
  shared.variables.keep(both);
  shared.variables.undo(both);
  CHECK(shared.get("a") == "1x");
}

// Whether `work` went through with so few allocations.
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

TEST(a_step_is_taken_back_whole_or_not_at_all) {
  Shared shared;
  WasmVariables::Writes others, step, later;
  for (const char *name : {"a", "b"}) shared.write(name, "Set", kLong, others);
  for (const char *name : {"a", "b", "c"}) shared.write(name, "Append", "x", step);
  for (const char *name : {"a", "b"}) shared.write(name, "Append", "y", later);
  int num_failed = 0;
  while (!goes_with(num_failed, [&] { shared.variables.undo(step); })) {
    ++num_failed;
    for (const char *name : {"a", "b"}) CHECK(shared.get(name) == "3" + kLong + "xy");
    CHECK(shared.get("c") == "1x");
    for (const auto &write : step) EQUAL(write->num_holders, 1);
  }
  CHECK(num_failed > 3);
  for (const char *name : {"a", "b"}) CHECK(shared.get(name) == "2" + kLong + "y");
  CHECK(shared.get("c") == "-");
}

TEST(a_write_is_made_whole_or_not_at_all) {
  for (const bool is_new : {true, false}) {
    for (const bool joins : {true, false}) {
      Shared shared;
      WasmVariables::Writes before, step;
      if (!is_new) shared.write("a", "Set", kLong, joins ? step : before);
      const std::string old = shared.get("a");
      const std::size_t size = WasmVariables::num_bytes(step);
      std::string answer;
      int num_failed = 0;
      for (;; ++num_failed) {
        if (goes_with(num_failed, [&] { shared.write("a", "Append", kLong, step); })) break;
        // Or it failed behind the write, which the step takes back as a whole.
        if (WasmVariables::num_bytes(step) == size) {
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

TEST(what_is_kept_without_memory_stands) {
  for (int allocations = 0; allocations < 20; ++allocations) {
    Shared shared;
    WasmVariables::Writes open, one, two, three;
    shared.write("a", "Append", "o", open);
    for (WasmVariables::Writes *writes : {&one, &two, &three}) shared.write("a", "Append", kLong, *writes);
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
    WasmVariables::Writes more;
    shared.write("a", "Append", "m", more);
    shared.variables.undo(more);
    CHECK(shared.get("a").substr(1) == (allocations % 2 ? "o" : "") + kLong + kLong + kLong);
  }
}

// A copy's end keeps what it shared; taken back, it is settled, and the next one that settles becomes a part of it.
TEST(writes_that_were_kept_by_a_copy_are_joined) {
  Shared shared;
  WasmVariables::Writes first, second, third;
  shared.write("a", "Append", "1", first);
  shared.write("a", "Append", "2", second);
  shared.variables.share(second);
  shared.variables.keep(second);
  shared.write("a", "Append", "3", third);
  shared.variables.keep(third);
  shared.variables.undo(second);
  CHECK(shared.get("a") == "3123");
  shared.variables.undo(first);
  CHECK(shared.get("a") == "223");
}

// Against all writes in a row, from which those that are taken back are left out.
TEST(variables_are_their_writes) {
  struct Step {
    WasmVariables::Writes writes;
    std::vector<std::string> ops;
    int holders = 1;
    bool kept = false;
    int sequence;
  };
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Shared shared;
    std::vector<std::unique_ptr<Step>> steps;
    std::vector<std::vector<Step *>> sequences(3);
    std::vector<Step *> row;  // one for each write
    for (int i = 0; i < 60; ++i) {
      auto &mine = sequences[random() % sequences.size()];
      const unsigned what = random() % 10;
      if (what < 5) {
        steps.push_back(std::make_unique<Step>());
        Step &step = *steps.back();
        for (unsigned n = 1 + random() % 3; n > 0; --n) {
          step.ops.push_back(std::string(1, random() % 3 ? '+' : '=') + static_cast<char>('a' + i % 26) +
                             std::to_string(n));
          shared.write("v", step.ops.back()[0] == '+' ? "Append" : "Set", step.ops.back().substr(1), step.writes);
        }
        mine.push_back(&step);
        row.push_back(&step);
      } else if (what < 8 && !mine.empty()) {
        shared.variables.undo(mine.back()->writes);
        --mine.back()->holders;
        mine.pop_back();
      } else if (what < 9 && !mine.empty()) {
        Step *oldest = mine.front();
        shared.variables.keep(oldest->writes);
        --oldest->holders;
        oldest->kept = true;
        mine.erase(mine.begin());
      } else if (what == 9) {
        auto &copy = sequences[random() % sequences.size()];
        if (&copy == &mine) continue;
        for (Step *step : copy) {
          shared.variables.keep(step->writes);
          --step->holders;
          step->kept = true;
        }
        copy = mine;
        for (Step *step : copy) {
          shared.variables.share(step->writes);
          ++step->holders;
        }
      }
      // What is behind a value that stays for good is of no account any more, but its writes were made.
      std::string value;
      bool exists = false;
      for (const Step *step : row) {
        if (step->holders == 0 && !step->kept) continue;
        exists = true;
        for (const std::string &op : step->ops) value = (op[0] == '+' ? value : "") + op.substr(1);
      }
      const auto found = shared.variables.get("v");
      EQUAL(found.has_value(), exists);
      if (found && exists) CHECK(*found->bytes == value);
    }
  }
}

TEST(writes_that_may_be_taken_back_have_a_limit) {
  Shared shared;
  shared.limits.undo_bytes = 10000;
  shared.limits.variable_bytes = 1000;
  shared.limits.max_variables = 10;
  bool stopped = false;
  std::vector<WasmVariables::Writes> all(100);
  for (int i = 0; i < 100 && !stopped; ++i) {
    try {
      shared.write("v", "Set", std::string(900, 'x'), all[static_cast<std::size_t>(i)]);
    } catch (const WasmError &error) {
      stopped = std::string(error.what()).find("raise undo_bytes") != std::string::npos;
    }
  }
  CHECK(stopped);
  for (const auto &writes : all) shared.variables.keep(writes);
  WasmVariables::Writes more;
  shared.write("v", "Set", "y", more);
}

// Where the kernel does not tell, nothing is said.
TEST(pages_that_were_written_are_known) {
  constexpr std::size_t kPage = 4096, kPages = 700;
  auto *memory = static_cast<std::uint8_t *>(
      mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::mt19937 random(4);
  for (std::size_t page = 0; page < kPages; page += 2) memory[page * kPage] = 1;
  weft::WrittenPages written;
  std::vector<weft::WrittenPages::Range> ranges;
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
  CHECK(known == 0 || known == 60);
  written.stop();
  CHECK(!written.take(ranges));
  munmap(memory, kPages * kPage);
}

TEST(guests_run_elsewhere_and_their_errors_come_back) {
  std::vector<std::thread> callers;
  std::vector<int> sums(8);
  for (int caller = 0; caller < 8; ++caller)
    callers.emplace_back([caller, &sums] {
      for (int i = 0; i < 200; ++i) {
        const auto me = std::this_thread::get_id();
        try {
          weft::run_as_guest([&] {
            if (std::this_thread::get_id() == me) sums[caller] = -1000;
            if (i % 10 == 0) throw WasmError("no");
            ++sums[caller];
          });
        } catch (const WasmError &) {
          sums[caller] += 2;
        }
      }
    });
  for (std::thread &caller : callers) caller.join();
  for (const int sum : sums) EQUAL(sum, 220);
}

}  // namespace

int main(int argc, char **argv) { return weft::test::run(argc, argv); }
