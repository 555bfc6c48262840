// The grammar's side of decoding: which matcher each slot has, how far it has been taken, and which mask rows are
// filled. Python-free, so that the sanitizers can run it.
//
// The operations run in the order of one stream, on the driver's callback thread. They never raise: what goes wrong
// with a slot is that slot's status, and every other slot goes on. `push`, `release` and what reads belong to the host.
// A commit that its iteration does not wait for is done by whoever needs it first: the next `fetch`, or the host with
// `commit_owed`.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "guided/clock.h"
#include "guided/flight_log.h"
#include "matcher/handle.h"
#include "support/long_phase.h"
#include "support/row_hash.h"

namespace weft {

// Pinned host memory, by slot; S+1 slots, the last a dummy for graph padding. The caller keeps it alive.
struct GuidedBuffers {
  const std::int64_t *drafts = nullptr;    // [K, S+1]     draft j in row j-1, -1 none
  const std::int64_t *verified = nullptr;  // [S+1, K+2]   accepted drafts n, then the tokens of positions 0..K
  std::int32_t *masks = nullptr;           // [(S+1)*(K+1), W]
  std::int32_t *token_mask = nullptr;      // [(S+1)*(K+1)]  1: the row's mask is to be applied
  float *temperatures = nullptr;           // [(S+1)*(K+1)]  what the matcher wants there, negative: nothing; or null
};

struct GuidedShape {
  int num_slots = 0;   // S
  int max_drafts = 0;  // K
  int vocab_size = 0;
  int words() const { return (vocab_size + 31) / 32; }
};

// Why a slot's grammar stopped.
enum class SlotStatus : int {
  kOk = 0,
  kRefused,    // a committed token is not in the grammar
  kDeadEnd,    // no token may follow
  kMatcher,    // the matcher failed
  kTimeLimit,  // the guide took longer than its limit within one token
  kEpoch,      // iterations and snapshots are out of step
  kVerified,   // the verified tensor contradicts what was extended
  kEdited,     // the matcher edits the text: the host applies the edit, and attaches the matcher again
};
const char *status_name(SlotStatus status);

struct OperationCounters {
  std::uint64_t calls = 0, fills = 0, nanoseconds = 0, max_nanoseconds = 0;
};

// An edit of a slot's text after `committed` tokens since its matcher was attached: drop the last `drop` tokens, then
// append these.
struct Edit {
  std::int64_t committed = 0;
  int drop = 0;
  std::vector<std::int32_t> append;
};

class GuidedState {
 public:
  using Attach = std::vector<std::pair<int, MatcherRef>>;
  enum Operation { kFetch, kExtend, kCommit, kExtendThrough, kRelease };

  // `end_tokens` are what a row allows that has nothing else to allow. `workers` threads help with the matchers of a
  // phase that turns out long; 0 keeps all of it on the calling thread. A slot whose matcher takes longer than
  // `mask_time_limit_s` (0: no limit) from one commit to the next, in whatever it is called for, fails
  // (guided/clock.h).
  GuidedState(GuidedShape shape, std::vector<std::int32_t> end_tokens, GuidedBuffers buffers, int workers = 0,
              double mask_time_limit_s = 0, int max_pending = 64);
  ~GuidedState();
  GuidedState(const GuidedState &) = delete;
  GuidedState &operator=(const GuidedState &) = delete;

  // Host side, before the launch of an iteration: which slots it has, and which matchers come (or, null, go). Returns
  // the snapshot's epoch: `epoch` if it is given, else the last one plus 1. Throws std::invalid_argument for a slot
  // that is out of range or named twice, or a matcher that has a slot already, and std::length_error when
  // `max_pending` snapshots have not been fetched. Lets go of matchers that were detached before.
  std::uint64_t push(std::vector<int> slots, Attach attach, std::uint64_t epoch = 0);

  // The operations of one iteration, in stream order. With `owes_commit` the iteration has no `commit`: what it
  // verified is committed by the next `fetch`, or by `commit_owed`.
  void fetch(bool owes_commit = false);
  void extend(int draft);          // 1..K
  void extend_through(int count);  // extend(1), ..., extend(count) at once; taken drafts cost nothing
  void commit();

  // Host side, after iteration `epoch` is done: commit what it owes, unless that was done. Waits for a `fetch` that is
  // at it. On any thread.
  void commit_owed(std::uint64_t epoch);
  // Host side, after iteration `epoch` failed and nothing of it is in flight: what it owes is never committed.
  void forget_owed(std::uint64_t epoch);

  // For what drafts on the callback thread, between `commit` and the next `extend` (an iteration that owes its commit
  // drafts nothing); another thread for each slot will do. Both are 0 for a slot without a matcher, one that has ended
  // and one that has failed, and change no state; a matcher that fails here fails its slot.
  //
  // How many of the tokens the grammar takes, one by one, after the committed text.
  int validate(int slot, const std::int32_t *tokens, int count);
  // Tokens that spell what must follow the committed text (weft_matcher_ops.forced), or else the only token that may
  // follow it.
  int forced(int slot, std::int32_t *tokens, int capacity);
  // `body(slot)` once for each slot of the snapshot in work, padding left out, on this thread and the state's workers.
  template <class Body>
  void each_current(Body body) {
    phase_.for_each(static_cast<int>(current_.size()), [&](int i) {
      const int slot = current_[static_cast<std::size_t>(i)];
      if (slot < shape_.num_slots) body(slot);
    });
  }

  // Host side, with nothing in flight: back to the committed text; the matcher stays attached.
  void release(int slot);

  // Host side, with nothing in flight: let go of these slots' matchers at once, and not with the snapshot that says so
  // later: it may be long until there is one. Throws std::logic_error where a snapshot waits.
  void vacate(const std::vector<int> &slots);

  // Keep records of the last operations in `capacity_words` words (0: none, and forget what there is); their layout is
  // that of guided/recording.cpp. Host side, with nothing in flight. Throws std::invalid_argument for too few words.
  void record(std::size_t capacity_words);
  // Those records, oldest first. At any time, on any thread.
  std::vector<std::int64_t> recorded() const;

  // The operations as host tasks: `run(data)`, named `name`; all of it lives as long as the state. `argument` is the
  // draft of kExtend, the number of drafts of kExtendThrough, and 1 for a kFetch that owes its commit.
  struct Call {
    void (*run)(void *data);
    void *data;
    const char *name;
  };
  Call task(Operation operation, int argument = 0);

  // Readable at any time.
  std::pair<SlotStatus, std::string> status(int slot) const;
  // For a slot whose status is kEdited.
  std::optional<Edit> edit(int slot) const;
  // Slots whose status is not kOk.
  int num_failed() const { return num_failed_.load(std::memory_order_acquire); }
  std::int64_t committed(int slot) const { return slots_.at(slot).committed.load(std::memory_order_acquire); }
  int extended(int slot) const { return slots_.at(slot).extended.load(std::memory_order_acquire); }
  bool is_terminated(int slot) const { return slots_.at(slot).ended.load(std::memory_order_acquire); }
  bool is_guided(int slot) const { return slots_.at(slot).guided.load(std::memory_order_acquire); }
  // The epochs of the last snapshot that was fetched and (host side) of the last that was pushed.
  std::uint64_t epoch() const { return fetched_epoch_.load(std::memory_order_acquire); }
  std::uint64_t pushed_epoch() const { return pushed_epoch_; }
  int num_pending() const;
  // kExtendThrough is counted as kExtend, one call.
  OperationCounters counters(Operation operation) const;
  // What all operations have taken.
  double seconds() const;
  const GuidedShape &shape() const { return shape_; }

 private:
  enum class Row : std::uint8_t { kStale, kFilled, kEndOnly };

  struct Slot {
    MatcherRef matcher;
    std::atomic<bool> guided{false}, ended{false};
    std::atomic<std::int64_t> committed{0};
    std::atomic<int> extended{0};
    std::atomic<SlotStatus> status{SlotStatus::kOk};
    bool stopped = false;               // the draft after the taken ones was refused:
    std::int64_t refused = 0;           // ... this one
    bool dead_end = false;              // ... because nothing could have followed it
    bool edits = false;                 // ... because its commit edits the text
    std::vector<std::int64_t> taken;    // the drafts that the matcher took, [K]
    std::vector<Row> rows;              // [K+1]
    std::vector<std::uint64_t> hashes;  // [K+1] of filled rows, while recording
    std::int64_t start = 0;             // the matcher's position when it was attached
    GuideClock clock;                   // of what its matcher took since the last commit
    std::string message;                // under status_mutex_
    Edit edit;                          // under status_mutex_, while the status is kEdited
  };

  struct Snapshot {
    std::uint64_t epoch = 0;
    std::vector<int> slots;
    Attach attach;
  };

  struct Task {
    GuidedState *state;
    Operation operation;
    int argument;
    std::string name;
  };

  struct AtomicCounters {
    std::atomic<std::uint64_t> calls{0}, fills{0}, nanoseconds{0}, max_nanoseconds{0};
  };

  static void run_task(void *data);
  template <class Body>
  void each_guided(Operation operation, Body body);
  // All that calls a slot's matcher goes through here: its time is measured, and the slot fails where it was too much.
  template <class Body>
  void measured(int slot, Body body) {
    GuideClock &clock = slots_[static_cast<std::size_t>(slot)].clock;
    clock.begin();
    body();
    clock.lap(GuideClock::kTaking);
    if (clock.is_over()) fail(slot, SlotStatus::kTimeLimit, clock.problem());
  }

  bool take_snapshot();
  void commit_slots(bool is_owed);
  void detach(int slot);
  void attach(int slot, MatcherRef matcher);
  void extend_slot(int slot, int draft);
  void commit_slot(int slot);
  bool takes_next(int slot, int draft, std::int64_t token);
  bool take_back(int slot, int count);

  std::size_t row_index(int slot, int position) const {
    return static_cast<std::size_t>(slot) * (shape_.max_drafts + 1) + position;
  }
  void set_temperature(int slot, int position, float temperature) {
    if (buffers_.temperatures) buffers_.temperatures[row_index(slot, position)] = temperature;
  }
  std::int32_t *row(int slot, int position) { return buffers_.masks + row_index(slot, position) * shape_.words(); }
  bool is_allowed(int slot, int position, std::int64_t token);
  bool is_empty(const std::int32_t *row) const;
  std::int32_t only_token(const std::int32_t *row) const;
  bool is_at_committed(int slot) const;
  // Fills one row. False: the slot failed, or (dead end) no token may follow and the row is left empty.
  enum class Fill { kDone, kEmpty, kFailed };
  Fill fill(int slot, int position, Operation operation);
  void end_rows(int slot, int from);
  void stop(int slot, int draft, std::int64_t refused);
  void fail(int slot, SlotStatus status, std::string message);
  void take_edit(int slot);
  void fail_matcher(int slot, const char *during);

  // What an operation left, to the log if there is one. `through` is the last row that an extend answers for.
  void log_fetch(const Attach &attach, bool is_missing);
  void log_operation(Operation operation, int argument, bool is_owed = false);
  void log_release(int slot);
  void log_slot(int slot, int through, Operation operation = kFetch);

  const GuidedShape shape_;
  const GuidedBuffers buffers_;
  const std::size_t max_pending_;
  std::vector<std::int32_t> end_row_;  // [W]
  std::uint32_t last_word_bits_;       // the bits of the last word that are tokens
  std::vector<Slot> slots_;            // [S+1]
  std::vector<Task> tasks_;            // [4 + 2 K]
  std::array<AtomicCounters, 3> counters_;
  std::atomic<int> num_failed_{0};
  std::atomic<std::uint64_t> fetched_epoch_{0};
  LongPhase phase_;

  mutable std::mutex status_mutex_;
  mutable std::mutex queue_mutex_;
  std::deque<Snapshot> queue_;
  std::vector<MatcherRef> detached_;  // let go of by the next push
  std::uint64_t pushed_epoch_ = 0;    // host only, like `attached_`
  std::vector<MatcherRef> attached_;  // [S+1] what the host has attached, as of the last push

  // Of the iteration that owes its commit, 0 for none. Whoever commits it holds the mutex; no operation of its own
  // iteration runs beside that, and each of a later one comes after a `fetch`, which takes the mutex first.
  std::uint64_t owed_epoch_ = 0;
  std::mutex owed_mutex_;

  // Callback side, and under owed_mutex_ whoever commits what is owed.
  std::unique_ptr<FlightLog> log_;
  std::vector<int> current_;  // slots of the snapshot in work
  std::vector<int> guided_;   // those of them with a matcher
};

}  // namespace weft
