// Shared variables of programs: undoing, keeping, sharing and bounding of writes. Run it under sanitizers too.
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "aici/base/limits.h"
#include "check.h"
#include "shared_variables.h"

namespace {

using weft::aici::ProgramError;
using weft::aici::Variables;
using weft::test::Shared;

TEST_CASE("what a sequence wrote beyond a text is left out") {
  Shared shared;
  Variables::Writes writes[5];
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

TEST_CASE("variables are taken back") {
  Shared shared;
  Variables::Writes first, second;
  CHECK(shared.write("a", "Append", "AB", first) == R"({"WriteVar":{"version":1}})");
  shared.write("a", "Append", "C", second);
  shared.write("b", "Append", "D", second);
  shared.write("a", "Append", "E", second);
  CHECK(second.size() == 2);
  CHECK(shared.get("a") == "3ABCE");
  shared.variables.undo(second);
  CHECK(shared.get("a") == "1AB");
  CHECK(shared.get("b") == "-");
  shared.variables.undo(first);
  CHECK(shared.get("a") == "-");
}

TEST_CASE("what others wrote since stands") {
  Shared shared;
  Variables::Writes one, two, three;
  shared.write("a", "Set", "x", one);
  shared.write("a", "Append", "y", two);
  shared.write("a", "Append", "z", one);
  shared.variables.undo(one);  // neither x nor z remains
  CHECK(shared.get("a") == "1y");
  shared.write("a", "Set", "new", one = {});
  shared.variables.undo(two);
  CHECK(shared.get("a") == "1new");
  // The undo takes the version back, so the next write, of another sequence, gets the undone write's version.
  shared.write("a", "Set", "mine", two = {});
  shared.variables.undo(two);
  shared.write("a", "Set", "theirs", three);
  shared.variables.undo(one);
  CHECK(shared.get("a") == "1theirs");
  shared.variables.keep(three);
  CHECK(shared.get("a") == "1theirs");
}

TEST_CASE("copies of a sequence share what was written before") {
  Shared shared;
  Variables::Writes both;
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

// `second` is kept by the copy, so the other holder's undo does not remove it. It is permanent then, and is joined with
// `third`, which is permanent too.
TEST_CASE("writes that were kept by a copy are joined") {
  Shared shared;
  Variables::Writes first, second, third;
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

// Compares the value with that of a plain list of all writes that were not undone.
TEST_CASE("variables are their writes") {
  struct Step {
    Variables::Writes writes;
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
    std::vector<Step *> row;  // one entry for each write
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
      // A permanent Set hides earlier writes, but they still count for the version.
      std::string value;
      bool exists = false;
      for (const Step *step : row) {
        if (step->holders == 0 && !step->kept) continue;
        exists = true;
        for (const std::string &op : step->ops) value = (op[0] == '+' ? value : "") + op.substr(1);
      }
      const auto found = shared.variables.get("v");
      CHECK(found.has_value() == exists);
      if (found && exists) CHECK(*found->bytes == value);
    }
  }
}

TEST_CASE("writes that may be taken back have a limit") {
  Shared shared;
  shared.limits.undo_bytes = 10000;
  shared.limits.variable_bytes = 1000;
  shared.limits.max_variables = 10;
  bool stopped = false;
  std::vector<Variables::Writes> all(100);
  for (int i = 0; i < 100 && !stopped; ++i) {
    try {
      shared.write("v", "Set", std::string(900, 'x'), all[static_cast<std::size_t>(i)]);
    } catch (const ProgramError &error) {
      stopped = std::string(error.what()).find("raise undo_bytes") != std::string::npos;
    }
  }
  CHECK(stopped);
  for (const auto &writes : all) shared.variables.keep(writes);
  Variables::Writes more;
  shared.write("v", "Set", "y", more);
}

}  // namespace
