// The tokens that a program's sequence has taken, with what takes them back. Python-free.
//
// The log keeps to undo_tokens and undo_bytes: what is older is merged into one change that leads back to the start.
// So the program goes on whatever its steps change, and only taking back more than the log has fails.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aici/host/instance.h"
#include "aici/host/variables.h"
#include "aici/turn.h"
#include "aici/undo.h"

namespace weft {

class WasmHistory {
 public:
  // What taking one token changed.
  struct Taken {
    WasmPosition before;
    bool has_run = false;  // the program was asked
    GuestChange change;
    WasmVariables::Writes writes;
    std::size_t num_bytes = 0;  // what is kept to take it back, as the step ended
  };

  WasmHistory(std::shared_ptr<WasmVariables> variables, const WasmLimits &limits);
  ~WasmHistory();  // what the sequence wrote to the variables stays
  WasmHistory(const WasmHistory &) = delete;
  WasmHistory &operator=(const WasmHistory &) = delete;

  const WasmPosition &position() const { return position_; }
  // What is kept to take tokens back.
  std::size_t num_bytes() const { return num_bytes_; }

  // The instance is at its start. What it wrote on the way there stays.
  void start(const WasmInstance &instance, WasmPosition position, const WasmVariables::Writes &writes);

  // One more token: `open` makes its place, which `close` fills and `drop` gives up. After `open`, `follow` notes what
  // a step of the instance changed.
  void open();
  void follow(WasmInstance &instance);
  void close(WasmPosition next) noexcept;
  void drop() { taken_.pop_back(); }

  // Takes back the last `count` tokens, or all: all but the instance, whose part is `restore`. Whether there is any.
  // Throws WasmError where that is further than the log reaches, or than was taken; nothing is changed then.
  bool take_back(int count);
  bool take_back_all();

  // Makes the instance what it was after the last token. `has_run`: it may have changed since, beside what was taken
  // back. `needs_guest`: it may run the program's start function, and so belongs on a guest thread.
  bool needs_guest(const WasmInstance &instance) const { return shadow_.needs_instance(instance); }
  void restore(WasmInstance &instance, bool has_run) { shadow_.restore(instance, has_run); }

  // Makes `other`, with a new instance, a copy. On a guest thread.
  void copy_to(WasmHistory &other, WasmInstance &instance) const;

  // While it lives, tokens are taken to be taken back: nothing is merged.
  class Trial {
   public:
    explicit Trial(WasmHistory &history) : history_(history) { history_.bytes_before_trial_ = history_.num_bytes_; }
    ~Trial() { history_.bytes_before_trial_.reset(); }
    // Throws WasmError where the tokens since its beginning take more than undo_bytes.
    void check(int num_tokens) const;

   private:
    WasmHistory &history_;
  };

 private:
  struct Extent {
    std::size_t num_tokens = 0, num_bytes = 0;
  };

  bool undo(const Taken &taken);
  Extent extent() const;  // of all that is taken
  std::string what_to_raise(std::size_t num_tokens) const;
  void merge_oldest();

  const std::shared_ptr<WasmVariables> variables_;
  const WasmLimits &limits_;
  GuestShadow shadow_;
  WasmPosition position_;
  std::deque<std::shared_ptr<Taken>> taken_;  // shared with copies; only the one that is open changes
  std::size_t num_bytes_ = 0;                 // of those that are closed
  std::optional<std::size_t> bytes_before_trial_;

  // What was taken before `taken_`.
  WasmPosition first_;
  WasmVariables::Values first_values_;
  GuestChanges merged_;
  bool has_merged_writes_ = false;
  bool has_kept_writes_ = false;  // of the sequence itself, not of what it is a copy of: what it wrote stays for good
  struct Merged {
    Extent before, most;
  };
  std::vector<Merged> merged_tokens_;
  Extent merged_extent_;  // of them all
};

}  // namespace weft
