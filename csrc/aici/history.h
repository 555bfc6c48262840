// An undo log: the tokens that a program's sequence has accepted, and the saved contents that undo them. Python-free.
//
// The log is bounded by undo_tokens and undo_bytes. Older tokens are merged into one change that leads back to the
// start, so they can only be undone together. A program may change any amount of memory; only a rollback to a point
// within the merged tokens fails.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aici/host/instance.h"
#include "aici/host/variables.h"
#include "aici/position.h"
#include "aici/undo.h"

namespace weft::aici {

class History {
 public:
  History(std::shared_ptr<Variables> variables, const Limits &limits);
  ~History();  // makes the sequence's writes to variables permanent
  History(const History &) = delete;
  History &operator=(const History &) = delete;

  const Position &position() const { return position_; }
  std::size_t num_bytes() const { return num_bytes_; }  // saved to undo tokens

  // Begins the history of an instance that is at its start. The writes so far become permanent.
  void start(const Instance &instance, Position position, const Variables::Writes &writes);

  // Calls for one token: `open` adds a record, `follow` records the changes if the program takes a step, and in the end
  // `close` completes the record or `drop` removes it.
  void open();
  void follow(Instance &instance);
  void close(Position next) noexcept;
  void drop() { taken_.pop_back(); }

  // Undoes the last `count` tokens, or all tokens, except in the instance; `restore` does that. Returns whether the
  // instance has to be restored. Throws ProgramError, and changes nothing, if the log does not reach that far, or if
  // merged tokens wrote variables that other sequences share.
  bool undo(int count);
  bool undo_all();

  // Restores the instance to the state after the last token. `has_run` means that the instance may have changed in more
  // than the undone pages. If `needs_guest`, `restore` may run the program's start function, so call it on a guest
  // thread.
  bool needs_guest(const Instance &instance) const { return shadow_.needs_instance(instance); }
  void restore(Instance &instance, bool has_run) { shadow_.restore(instance, has_run); }

  // Makes `other` a copy of this history, and makes `instance` its new instance. Call it on a guest thread.
  void copy_to(History &other, Instance &instance) const;

  // During the lifetime of a Trial no tokens are merged, because its tokens will be undone soon.
  class Trial {
   public:
    explicit Trial(History &history) : history_(history) { history_.bytes_before_trial_ = history_.num_bytes_; }
    ~Trial() { history_.bytes_before_trial_.reset(); }
    // Throws ProgramError if the trial's tokens take more than undo_bytes.
    void check(int num_tokens) const;

   private:
    History &history_;
  };

 private:
  // A token's entry in the log: the position before it, and the changes that its step made.
  struct Record {
    Position before;
    bool has_run = false;  // the program took a step
    GuestChange change;
    Variables::Writes writes;
    std::size_t num_bytes = 0;  // at the end of the step
  };
  struct Extent {
    std::size_t num_tokens = 0, num_bytes = 0;
  };

  bool undo_record(const Record &record);
  Extent extent() const;  // of all tokens, merged ones included
  std::string what_to_raise(std::size_t num_tokens) const;
  void merge_oldest();

  const std::shared_ptr<Variables> variables_;
  const Limits &limits_;
  GuestShadow shadow_;
  Position position_;
  std::deque<std::shared_ptr<Record>> taken_;  // shared with copies; only the open record changes
  std::size_t num_bytes_ = 0;                  // in the closed records
  std::optional<std::size_t> bytes_before_trial_;

  // The start, and the merged tokens between the start and `taken_`.
  Position first_;
  Variables::Values first_values_;
  GuestChanges merged_;
  bool has_merged_writes_ = false;
  bool has_kept_writes_ = false;  // this sequence (not the one it was copied from) made writes permanent
  struct Merged {
    Extent before, max;  // of all tokens: before this token, and the largest since then
  };
  std::vector<Merged> merged_tokens_;
  Extent merged_extent_;  // of all merged tokens
};

}  // namespace weft::aici
