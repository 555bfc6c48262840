// The variables that the sequences of one request share, through AICI's storage commands. Python-free.
//
// A variable is the ordered list of its writes, without those that were undone. So undoing a write keeps the later
// writes of other sequences, even text that they appended to the undone text. A variable's version is its number of
// writes, so undoing a write restores the old version if no sequence has written since.
//
// A copy of a sequence shares the writes from before the copy. A shared write is undone once every holder has undone
// it. It is permanent as soon as one holder can no longer undo it.
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

namespace weft::aici {

class Variables {
 public:
  struct Value {
    std::uint64_t version = 0;
    std::shared_ptr<const std::string> bytes;
  };
  using Values = std::map<std::string, Value, std::less<>>;
  // The origin of a write: the sequence, and the number of tokens that it had before the step that wrote.
  struct Origin {
    std::uint32_t sequence = 0;
    std::int64_t num_tokens = 0;
  };
  // One write, or several joined writes. Only the writer may read it without the mutex, and only until its step ends. A
  // permanent write may be joined with an earlier one.
  struct Write {
    std::string name;
    bool appends;
    std::string bytes;
    Origin origin;
    std::uint64_t count = 1;
    int num_holders = 1;   // sequences that can still undo it
    bool is_kept = false;  // permanent, even if the other holders undo it
  };
  using Writes = std::vector<std::shared_ptr<Write>>;
  // The memory that a step's writes take, in bytes. Call it before the step ends.
  static std::size_t num_bytes(const Writes &writes);

  // Executes a storage command (JSON) and returns its reply (JSON). Adds its write to `writes`. Throws ProgramError for
  // a malformed command, and for one that exceeds a limit.
  std::string command(std::string_view text, const Limits &limits, Writes &writes, Origin origin);

  // A sequence ends each of its writes with one call: `undo` removes the write, `keep` makes it permanent. Before that,
  // `share` adds a copy of the sequence as a holder. `undo` throws when memory is short, and then changes nothing.
  void undo(const Writes &writes);
  void keep(const Writes &writes) noexcept;
  void share(const Writes &writes) noexcept;

  std::optional<Value> get(const std::string &name);
  Values values();
  // Returns the values without those writes of sequence `beyond.sequence` that come from steps after its first
  // `beyond.num_tokens` tokens. Callable at any time, on any thread.
  Values values_without(Origin beyond);
  // `restore` sets all variables to earlier `values`. That is possible only if no other sequence uses the variables:
  // `check_alone` throws ProgramError if there is another sequence, or an ended one whose writes are permanent.
  void check_alone();
  void restore(const Values &values);

  std::uint32_t next_sequence();  // the number of a new sequence of the request: 1, 2, ...
  // A sequence that may write calls these at its start and at its end.
  void enter() noexcept;
  void leave(bool has_written) noexcept;

 private:
  struct Variable {
    Value settled;  // the value before `writes`, which no sequence can undo
    std::deque<std::shared_ptr<Write>> writes;
    Value current;
  };
  using ByName = std::map<std::string, Variable, std::less<>>;

  std::string write(Write made, const Limits &limits, Writes &writes);
  template <class IsGone>
  static Value value_of(const Variable &variable, IsGone is_gone);
  void settle(Variable &variable);
  void settle(const std::string &name) noexcept;
  void retract(ByName::iterator variable, Value left) noexcept;

  std::mutex mutex_;
  ByName variables_;
  std::size_t num_bytes_ = 0;          // of names and values
  std::size_t num_written_bytes_ = 0;  // of the `writes` of all variables
  std::uint32_t num_sequences_ = 0;    // since the request began
  std::uint32_t num_writers_ = 0;      // live sequences, plus ended sequences with permanent writes
};

}  // namespace weft::aici
