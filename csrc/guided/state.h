// The grammar's side of decoding: each slot's matcher, the tokens that it has taken, and the mask rows that it has
// filled. Python-free, so that the sanitizers can run it.
//
// THEORY OF OPERATION
//
// An iteration is a snapshot (the slots it works on, the matchers to attach and detach) and three operations. `fetch`
// takes the snapshot. `extend` feeds drafts to the matchers. `commit` keeps the accepted drafts, rolls back the others,
// and takes the token after them. Between iterations the host may `release` a slot's drafts. The host pushes snapshots.
// The driver's callback thread runs the operations in the order of one stream, often from a captured graph. The host
// may be some iterations ahead. With polled host tasks, the polling thread runs those of a captured graph; the stream
// orders both threads. So an operation cannot throw: a failure becomes the status of its slot, and the other slots
// continue.
//
// A slot is in one of these states. "Row j" is the mask for the token after the committed text and j drafts.
//
//   state      guided  ended  status  rows                                       leaves it by
//   unguided   no      no     kOk     none is applied                            fetch with a matcher -> live
//   live       yes     no     kOk     0..extended hold the matcher's masks       an operation -> below; fetch with a
//                                                                                change, vacate
//   ended      yes     yes    kOk     all allow end tokens only                  fetch with a change, vacate
//   failed     yes     any    other   all allow end tokens only                  fetch with a change, vacate
//
// A live slot also has a stop: the reason why the matcher did not take the draft after the `extended` taken ones, or
// none. Operations on a live slot:
//
//   operation     condition                                          effect
//   extend(j)     j-1 drafts are taken, and no stop                  takes draft j, fills row j; or stops at draft j
//                 draft j is taken, and the same                     none
//                 draft j is taken or stopped at, and was replaced   takes back to j-1, then as in the first line
//                 an earlier draft is not taken, or j is refused     rows from j on allow end tokens only
//   commit        the accepted drafts were taken                     takes back the others, takes the token after
//                                                                    them, fills row 0; ended after an end token
//                 an accepted draft was not taken                    failed
//                 the token after them is refused                    failed
//   release       nothing in flight                                  takes back all drafts
//   any           the matcher fails or takes too long                failed
//
// Stopping is not a failure: verification is expected to reject a draft that the grammar refuses. Only an accepted
// draft that the grammar refuses contradicts the masks that were applied.
//
// An iteration may owe its commit, because nothing on the device waits for the masks after its last token. The commit
// then runs when something first needs it: in the next `fetch`, or when the host reads the iteration's results and
// calls `commit_owed`. Until then nothing overwrites the slot's verified tokens: its next verification waits for masks
// that follow `fetch`.
//
// Where the device is the host, kernel threads are idle while the host works between two iterations. Then the last
// operation of an iteration may be `commit_ahead`, for an owed commit, or `extend_ahead`, for the drafts of the next
// iteration. Both only offer the slots to the kernel threads (Offer in support/kernel_threads.h). `commit_owed` does
// the slots that none of them took. `fetch` ends an `extend_ahead`, and `extend_through` then does the other slots. A
// failure in an `extend_ahead` takes effect at the `fetch`, so that it does not depend on the threads' speed when the
// host sees it. Matchers that may wait, for Python for example, are not offered: the host waits for an offer to end.
//
// Data, and the threads that may touch it:
//
//   data                                   written by                            read by             ordered by
//   slots_, rows, log_, current_, guided_  callback thread, in stream order;     the same            the stream, and
//                                          commit_owed; release and vacate                           owed_mutex_
//                                          with nothing in flight
//   one slot's matcher and rows            within an operation one worker of     the same            phase_, offer_
//                                          phase_ or offer_ at a time
//   atomics of a slot, counters            as slots_                             any thread          acquire/release
//   status message                         `fail`                                any thread          status_mutex_
//   queue_, detached_                      push, vacate; fetch                   the same            queue_mutex_
//   attached_, pushed_epoch_,              push, vacate: the host's thread       the same            one thread
//   MatcherHandle::slot
//
// Destroying a matcher may run Python code and free much memory, and the model would wait for that. So `fetch` only
// moves a detached matcher to `detached_`, and the host's next `push` or `vacate` drops it.
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
#include "support/kernel_threads.h"
#include "support/long_phase.h"
#include "support/row_hash.h"

namespace weft {

// Pinned host memory, by slot: S+1 slots, the last one for the padding rows of a graph. The caller keeps it alive.
struct GuidedBuffers {
  const std::int64_t *drafts = nullptr;    // [K, S+1]     draft j in row j-1, -1 none
  const std::int64_t *verified = nullptr;  // [S+1, K+2]   number of accepted drafts, then the tokens of positions 0..K
  std::int32_t *masks = nullptr;           // [(S+1)*(K+1), W]
  std::int32_t *token_mask = nullptr;      // [(S+1)*(K+1)]  1: apply the row's mask
  float *temperatures = nullptr;           // [(S+1)*(K+1)]  the matcher's; negative: use the request's own; or null
};

struct GuidedShape {
  int num_slots = 0;   // S
  int max_drafts = 0;  // K
  int vocab_size = 0;
  int words() const { return (vocab_size + 31) / 32; }
  // Throws std::invalid_argument if the sizes are invalid.
  void check() const;
};

// The status of a slot: kOk, or why its grammar stopped.
enum class SlotStatus : int {
  kOk = 0,
  kRefused,    // a committed token is not in the grammar
  kDeadEnd,    // no token may follow
  kMatcher,    // the matcher failed
  kTimeLimit,  // the guide took longer than its limit within one token
  kEpoch,      // iterations and snapshots are out of step
  kVerified,   // the verified tokens contradict the drafts that were taken
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
  enum Operation { kFetch, kExtend, kCommit, kExtendThrough, kRelease, kCommitAhead, kExtendAhead };

  // A row whose mask would allow no token allows `end_tokens` instead. Up to `workers` threads help with an operation
  // if they are awake or its matcher calls are long; with 0 the calling thread does them all. A slot whose matcher
  // takes longer than `mask_time_limit_s` (0: no limit) from one commit to the next fails (guided/clock.h). `push`
  // throws while `max_pending` snapshots wait. Throws std::invalid_argument for invalid sizes, for no end token, and
  // for one outside the vocabulary.
  GuidedState(GuidedShape shape, std::vector<std::int32_t> end_tokens, GuidedBuffers buffers, int workers = 0,
              double mask_time_limit_s = 0, int max_pending = 64);
  ~GuidedState();
  GuidedState(const GuidedState &) = delete;
  GuidedState &operator=(const GuidedState &) = delete;

  // Host side, before the launch of an iteration. `slots` are the iteration's slots; `attach` lists the slots that get
  // a matcher, or with null lose theirs. Returns the snapshot's epoch: `epoch` if it is given, else the last one
  // plus 1. Throws std::invalid_argument for a slot that is out of range or named twice, for a matcher that has a slot
  // already, and for an `epoch` that is not above the last one. Throws std::length_error when `max_pending` snapshots
  // have not been fetched. Also drops the matchers that earlier fetches detached.
  std::uint64_t push(std::vector<int> slots, Attach attach, std::uint64_t epoch = 0);

  // The operations of one iteration, in stream order. With `owes_commit` the iteration runs no `commit`; the next
  // `fetch` or `commit_owed` does.
  void fetch(bool owes_commit = false);
  void extend(int draft);          // 1..K
  void extend_through(int count);  // extend(1) to extend(count) in one call; drafts already taken cost nothing
  void commit();

  // Offers this iteration's owed commit, or `extend_through(count)`, to idle kernel threads. Last in an iteration.
  void commit_ahead();
  void extend_ahead(int count);
  // Ends an `extend_ahead` if no `fetch` will. Waits for the threads that are in it. On any thread.
  void end_ahead();

  // Host side, on any thread, after iteration `epoch` is done: runs the commit that it owes, unless that has run
  // already. Waits for a `fetch` that is running it.
  void commit_owed(std::uint64_t epoch);
  // Host side, after iteration `epoch` failed and nothing of it is in flight: cancels the commit that it owes.
  void forget_owed(std::uint64_t epoch);

  // `validate` and `forced` are for draft sources on the callback thread, between `commit` and the next `extend`. They
  // may run for several slots at once, on different threads. They return 0 for a slot without a live matcher. They
  // change no state, except that a matcher that fails here fails its slot. An iteration that owes its commit drafts
  // nothing, so it calls neither.
  //
  // Returns the number of `tokens` that the grammar accepts in sequence after the committed text.
  int validate(int slot, const std::int32_t *tokens, int count);
  // Writes the tokens of forced text (weft_matcher_ops.forced), or the only allowed token, and returns their number.
  int forced(int slot, std::int32_t *tokens, int capacity);
  // Calls `body(slot)` once for each slot of the current snapshot, except padding, on this thread and the workers.
  template <class Body>
  void each_current(Body body) {
    phase_.for_each(static_cast<int>(current_.size()), [&](int i) {
      const int slot = current_[static_cast<std::size_t>(i)];
      if (slot < shape_.num_slots) body(slot);
    });
  }

  // Host side, with nothing in flight: rolls the slot back to its committed text. The matcher stays attached.
  void release(int slot);

  // Host side, with nothing in flight: detaches these slots' matchers and drops them at once, because the snapshot that
  // detaches them may come much later. Throws std::logic_error while a pushed snapshot has not been fetched, and
  // std::invalid_argument for a slot that is out of range.
  void vacate(const std::vector<int> &slots);

  // Starts a recording of the last operations in a ring buffer of `capacity_words` words, and drops any previous one; 0
  // stops recording. guided/recording.cpp documents the layout. Host side, with nothing in flight. Throws
  // std::invalid_argument for too few words.
  void record(std::size_t capacity_words);
  // Returns the records, oldest first. Callable at any time, on any thread.
  std::vector<std::int64_t> recorded() const;

  // An operation as a host task: call `run(data)`. It is valid as long as the state lives. The `argument` of `task` is
  // the draft number for kExtend, the number of drafts for kExtendThrough and kExtendAhead, and 1 for a kFetch with
  // `owes_commit`.
  struct Call {
    void (*run)(void *data);
    void *data;
    const char *name;
  };
  Call task(Operation operation, int argument = 0);

  // Readable at any time.
  std::pair<SlotStatus, std::string> status(int slot) const;
  // The edit of a slot whose status is kEdited; nothing for other slots.
  std::optional<Edit> edit(int slot) const;
  // The number of slots whose status is not kOk.
  int num_failed() const { return num_failed_.load(std::memory_order_acquire); }
  std::int64_t committed(int slot) const { return slots_.at(slot).committed.load(std::memory_order_acquire); }
  int extended(int slot) const { return slots_.at(slot).extended.load(std::memory_order_acquire); }
  bool is_terminated(int slot) const { return slots_.at(slot).ended.load(std::memory_order_acquire); }
  bool is_guided(int slot) const { return slots_.at(slot).guided.load(std::memory_order_acquire); }
  // The epoch of the last snapshot that was fetched, and (host side) of the last one that was pushed.
  std::uint64_t epoch() const { return fetched_epoch_.load(std::memory_order_acquire); }
  std::uint64_t pushed_epoch() const { return pushed_epoch_; }
  int num_pending() const;
  // A kExtendThrough counts as one call of kExtend, and a commit or extend ahead as one of the same kind, with the time
  // of all threads. kRelease has no counters, and the binding refuses its name.
  OperationCounters counters(Operation operation) const;
  // The total time of all operations.
  double seconds() const;
  const GuidedShape &shape() const { return shape_; }

 private:
  // The content of a mask row. kStale: garbage, or the mask of an older text. kFilled: the matcher's mask. kEndOnly:
  // end tokens only, so `end_rows` need not write the row again.
  enum class Row : std::uint8_t { kStale, kFilled, kEndOnly };

  // Why the matcher did not take the draft after the `extended` taken ones.
  enum class Stop : std::uint8_t {
    kNone,
    kRefused,  // the grammar does not take it
    kDeadEnd,  // the grammar takes it, but no token could follow
    kEdits,    // the matcher would edit the text there, which only a commit may do
  };

  struct Slot {
    MatcherRef matcher;
    std::atomic<bool> guided{false}, ended{false};
    std::atomic<std::int64_t> committed{0};
    std::atomic<int> extended{0};
    std::atomic<SlotStatus> status{SlotStatus::kOk};
    Stop stop = Stop::kNone;
    std::int64_t stopped_at = 0;        // the draft that was not taken, while there is a stop
    std::vector<std::int64_t> taken;    // [K] the drafts that the matcher took; `extended` of them count
    std::vector<Row> rows;              // [K+1]
    std::vector<std::uint64_t> hashes;  // [K+1] of filled rows, while recording
    std::int64_t start = 0;             // the matcher's position when it was attached
    GuideClock clock;                   // the time spent in its matcher since the last commit
    bool may_wait = false;              // whether its matcher calls something that may wait
    bool holds_failure = false;         // during an `extend_ahead`: `fail` writes these two, and `fetch` applies them
    SlotStatus held_status = SlotStatus::kOk;
    std::string held_message;
    std::string message;  // under status_mutex_
    Edit edit;            // under status_mutex_, while the status is kEdited
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
  // Wraps the calls of a slot's matcher, except the rollback when it is detached: measures the time, and fails the slot
  // if it is over the limit.
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
  void commit_live(int slot);
  void extend_live(int slot, int count);
  bool is_live(int slot) const {
    const Slot &at = slots_[static_cast<std::size_t>(slot)];
    return at.status.load(std::memory_order_relaxed) == SlotStatus::kOk && !at.ended.load(std::memory_order_relaxed);
  }
  // Under owed_mutex_: offer `body(slot)` for the live slots of the snapshot, unless one may wait.
  template <class Body>
  void offer(Operation operation, Body body);
  // Under owed_mutex_: ends an `extend_ahead`, or any offer, and applies the failures that slots hold.
  void end_extend_ahead();
  void end_offer(bool finishes);
  void detach(int slot);
  void attach(int slot, MatcherRef matcher);
  void extend_slot(int slot, int draft);
  void commit_slot(int slot);
  void commit_untaken(int slot, Stop reason, int draft, std::int64_t token);
  bool is_next(int slot, int draft, std::int64_t token);
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
  // Fills one row with the matcher's mask. kEmpty: the mask allows no token, and the caller must deal with the row.
  enum class Fill { kDone, kEmpty, kFailed };
  Fill fill(int slot, int position, Operation operation);
  void end_rows(int slot, int from);
  void end_slot(int slot);
  void stop(int slot, int draft, Stop reason, std::int64_t token);
  void fail(int slot, SlotStatus status, std::string message);
  void take_edit(int slot);
  void fail_matcher(int slot, const char *during);

  // Append a record of an operation to the log, if there is one. `through` is the last row that an extend should fill.
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
  std::vector<Task> tasks_;            // [6 + 3 K]
  std::array<AtomicCounters, 3> counters_;
  std::atomic<int> num_failed_{0};
  std::atomic<std::uint64_t> fetched_epoch_{0};
  const int workers_;
  LongPhase phase_;

  mutable std::mutex status_mutex_;
  mutable std::mutex queue_mutex_;
  std::deque<Snapshot> queue_;
  std::vector<MatcherRef> detached_;  // the next push or vacate drops them
  std::uint64_t pushed_epoch_ = 0;
  std::vector<MatcherRef> attached_;  // [S+1] by slot, as of the last push or vacate

  // The epoch of the iteration that owes its commit, or 0. The thread that runs the commit holds the mutex. No other
  // operation can run then: those of the same iteration are done, and later ones follow a `fetch`, which locks the
  // mutex first.
  std::uint64_t owed_epoch_ = 0;
  std::mutex owed_mutex_;
  Operation offered_ = kRelease;  // under owed_mutex_: kCommit or kExtend while offer_ is open

  // Used on the callback thread, and under owed_mutex_ by the thread that runs an owed commit.
  std::unique_ptr<FlightLog> log_;
  std::vector<int> current_;  // slots of the current snapshot
  std::vector<int> guided_;   // the slots of `current_` with a matcher
  Offer offer_;               // the last member: its destructor waits for threads that use the others
};

}  // namespace weft
