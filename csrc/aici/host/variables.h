// The variables that the sequences of one request share: the programs' storage commands. Python-free.
//
// A variable is what was written to it, one write after another, without the writes that were taken back. So taking
// one back leaves what others wrote since, also what they appended after it; and its version, the number of its
// writes, is the old one where none wrote since. Copies of a sequence share the writes before the copy: such a write
// goes when all of them have taken it back, and stays for good as soon as one can't any more.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aici/base/limits.h"

namespace weft {

class WasmVariables {
 public:
  struct Value {
    std::uint64_t version = 0;
    std::shared_ptr<const std::string> bytes;
  };
  using Values = std::map<std::string, Value, std::less<>>;
  // The writer: the number of a sequence, in the step that was told of the last of so many tokens of its text.
  struct Origin {
    std::uint32_t sequence = 0;
    std::int64_t num_tokens = 0;
  };
  // One write, or several that need not be told apart. Under the mutex, except for its writer until the step has
  // ended. A write that can't be taken back any more may become a part of one that was before it.
  struct Write {
    std::string name;
    bool appends;
    std::string bytes;
    Origin origin;
    std::uint64_t count = 1;
    int num_holders = 1;   // sequences that may take it back
    bool is_kept = false;  // for good, even if a sequence takes it back
  };
  using Writes = std::vector<std::shared_ptr<Write>>;
  // What a step's writes take, as long as it has not ended.
  static std::size_t num_bytes(const Writes &writes);

  // Carries out one command (JSON) and returns the answer (JSON); what it wrote goes to `writes`. Throws WasmError
  // for a command that is none, and for one over the limits.
  std::string command(std::string_view text, const WasmLimits &limits, Writes &writes, Origin origin);

  // What a sequence does with writes that it may take back, each once: it does, it never will, or a copy may as well.
  // `undo` throws where there is no memory; nothing is changed then.
  void undo(const Writes &writes);
  void keep(const Writes &writes) noexcept;
  void share(const Writes &writes) noexcept;

  std::optional<Value> get(const std::string &name);
  // All of them, and back to them, for a sequence that shares them with none: where there is another, or one that has
  // ended and left what it wrote, `check_alone` throws WasmError.
  Values values();
  // All of them without what one sequence wrote in steps beyond these. At any time, on any thread.
  Values values_without(Origin beyond);
  void check_alone();
  void restore(const Values &values);

  // A number for one more sequence of the request: 1, 2, ...
  std::uint32_t next_sequence();
  void enter() noexcept;
  void leave(bool has_written) noexcept;

 private:
  struct Variable {
    Value settled;  // what stands for good
    std::deque<std::shared_ptr<Write>> writes;
    Value current;
  };
  using Variables = std::map<std::string, Variable, std::less<>>;

  std::string write(Write made, const WasmLimits &limits, Writes &writes);
  template <class IsGone>
  static Value value_of(const Variable &variable, IsGone is_gone);
  void settle(Variable &variable);
  void settle(const std::string &name) noexcept;
  void retract(Variables::iterator variable, Value left) noexcept;

  std::mutex mutex_;
  Variables variables_;
  std::size_t num_bytes_ = 0;          // of names and values
  std::size_t num_written_bytes_ = 0;  // of writes that have not settled
  std::uint32_t num_sequences_ = 0;    // there ever were
  std::uint32_t num_writers_ = 0;      // those that may write, and those that have left what they wrote
};

}  // namespace weft
