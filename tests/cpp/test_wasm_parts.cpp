// What stands between programs of strangers and the process, as far as it needs no program: reading their JSON, the
// variables that they share, and the threads that run them. Sanitizers watch.
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "guest_pool.h"
#include "wasm_code.h"
#include "wasm_error.h"
#include "wasm_json.h"
#include "wasm_variables.h"

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
  CHECK(weft::parse_json(weft::json_string("a\"\\\x01z"), "it").text == "a\"\\\x01z");
}

TEST(json_that_is_none_is_refused) {
  for (const char *text : {"", " ", "{", "[1,", "[1,]", "{\"a\"}", "{\"a\":}", "{a:1}", "\"\\q\"", "\"\\u12", "nul",
                           "inf", "nan", "1e999", "+1", "[1,\"a\"]", "1 2", "\"\\ud800\\u0041\"", "\"abc"})
    if (reads(text)) weft::test::report(__FILE__, __LINE__, text, 0, 1);
  CHECK(!reads(std::string(100, '[') + std::string(100, ']')));
  std::string many = "[";
  for (int i = 0; i < 20000; ++i) many += "{},";
  CHECK(!reads(many + "{}]"));
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

TEST(variables_are_taken_back) {
  WasmVariables variables;
  const WasmLimits limits;
  const auto write = [&](const char *name, const char *value, WasmVariables::Writes &writes) {
    return variables.command(
        std::string(R"({"WriteVar":{"name":")") + name + R"(","op":"Append","value":")" + value + "\"}}", limits,
        writes);
  };
  WasmVariables::Writes first, second, third;
  CHECK(write("a", "4142", first) == R"({"WriteVar":{"version":1}})");
  write("a", "43", second);
  write("b", "44", second);
  write("a", "45", third);
  CHECK(*variables.get("a")->bytes == "ABCE");
  WasmVariables::append(second, third);
  variables.undo(second);
  CHECK(*variables.get("a")->bytes == "AB");
  EQUAL(variables.get("a")->version, 1);
  CHECK(!variables.get("b"));
  variables.undo(second);  // once is enough
  CHECK(*variables.get("a")->bytes == "AB");
  variables.undo(first);
  CHECK(!variables.get("a"));
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
