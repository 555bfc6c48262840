// Parsing of untrusted input: the JSON that programs answer, and their WebAssembly code. Run it under sanitizers too.
#include <random>
#include <string>
#include <vector>

#include "aici/base/code.h"
#include "aici/base/json.h"
#include "aici/base/limits.h"
#include "check.h"

namespace {

using weft::aici::JsonValue;
using weft::aici::ProgramError;

const char *kResult =
    R"({"branches":[{"sample_mask":7,"temperature":null,"splices":[{"when_sampled":[1,2.5e1,-0],"ff_tokens":[]},)"
    R"({"x":"\u00e4\ud83d\ude00\n","y":[true,false,null]}]}]})";

bool reads(const std::string &text) {
  try {
    weft::aici::parse_json(text, "it");
    return true;
  } catch (const ProgramError &) {
    return false;
  }
}

TEST_CASE("json is read") {
  const JsonValue result = weft::aici::parse_json(kResult, "it");
  const JsonValue &branch = result.find("branches")->items[0];
  CHECK(branch.find("sample_mask")->number == 7);
  CHECK(branch.find("temperature") == nullptr);
  const JsonValue &splices = *branch.find("splices");
  CHECK(splices.items[0].find("when_sampled")->numbers.size() == 3);
  CHECK(splices.items[0].find("when_sampled")->numbers[1] == 25);
  CHECK(splices.items[0].find("ff_tokens")->kind == JsonValue::kNumbers);
  CHECK(splices.items[1].find("x")->text == "ä😀\n");
  CHECK(splices.items[1].find("y")->items.size() == 3);
  CHECK(weft::aici::parse_json(R"("a\"\\\u0001z")", "it").text == "a\"\\\x01z");
  CHECK(weft::aici::parse_json(R"({"a":null,"a":1,"a":2})", "it").find("a") == nullptr);
  CHECK(weft::aici::parse_json("18446744073709551615", "it").number == 18446744073709551615.0);
}

std::string problem_of(const std::string &text) {
  try {
    weft::aici::parse_json(text, "it");
    return "none";
  } catch (const ProgramError &error) {
    return std::string(error.what()).substr(std::string("it is not JSON that can be read: it ").size());
  }
}

TEST_CASE("problems of json are told") {
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
  for (const auto &[text, problem] : kProblems) CHECK(problem_of(text) == problem);
}

TEST_CASE("json is bounded") {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  CHECK(reads(nested(17)));
  CHECK(!reads(nested(18)));
  const auto list = [](int count, const std::string &item) {
    std::string text = "[";
    for (int i = 1; i < count; ++i) text += item + ",";
    return text + item + "]";
  };
  CHECK(reads(list(16383, "[1,2]")));
  CHECK(!reads(list(16384, "[1,2]")));
  CHECK(reads(list(5461, R"({"a":1,"b":[2]})")));
  CHECK(!reads(list(5462, R"({"a":1,"b":[2]})")));
  CHECK(reads(list(100000, "1")));
}

TEST_CASE("json that is none is refused") {
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
    CHECK_MESSAGE(!reads(text), text);
}

TEST_CASE("broken json does no harm") {
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
    return weft::aici::table_change(std::string(bytes.begin(), bytes.end()));
  } catch (const ProgramError &) {
    return "error";
  }
}

TEST_CASE("changes of tables are found") {
  // The code follows the locals: one group of two i32.
  const auto behind = [](std::vector<int> code) {
    code.insert(code.begin(), {1, 2, 0x7F});
    return change_in(code);
  };
  CHECK(behind({0x41, 0, 0xD0, 0x70, 0x26, 0, 0x0B}) == "table.set");
  CHECK(behind({0xFC, 12, 0, 0, 0x0B}) == "table.init");
  CHECK(behind({0xFC, 0x8E, 0, 0, 0, 0x0B}) == "table.copy");  // the opcode as a LEB128 number of two bytes
  CHECK(behind({0xFC, 15, 0, 0x0B}) == "table.grow");
  CHECK(behind({0xFC, 17, 0, 0x0B}) == "table.fill");
  // The same bytes as operands are no table instructions.
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

TEST_CASE("broken code does no harm") {
  std::mt19937 random(2);
  for (int i = 0; i < 20000; ++i) {
    std::vector<int> bytes(random() % 40);
    for (int &byte : bytes) byte = static_cast<int>(random() % 256);
    change_in(bytes);
  }
}

}  // namespace
