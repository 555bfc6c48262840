// Where drafts come from that the host proposes. Python-free.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "guided_state.h"
#include "ngram.h"

namespace weft {

constexpr int kMaxProposed = 64;  // drafts of a slot at once

// Its methods run on the callback thread, those of one slot one after another; they never raise.
class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // Before anything else of an iteration.
  virtual void begin() {}
  // The tokens that were committed to the slot since the last call.
  virtual void commit(int /*slot*/, const std::int64_t * /*tokens*/, int /*count*/) {}
  // Goes on behind `tokens[0..have)`, drafts that follow the committed text: writes tokens up to `tokens[capacity)` and
  // returns how many.
  virtual int propose(int slot, std::int32_t *tokens, int have, int capacity) = 0;
};

// What the grammar forces.
class ForcedSource final : public DraftSource {
 public:
  explicit ForcedSource(GuidedState &state) : state_(state) {}
  int propose(int slot, std::int32_t *tokens, int have, int capacity) override;

 private:
  GuidedState &state_;
};

struct NgramSettings {
  int min_length = 1, max_length = 4;  // of the n-grams
  int candidates = 8;                  // earlier places of which the grammar chooses
};

// What followed the last tokens of the slot's text, prompt and output, where they occurred before.
class NgramSource final : public DraftSource {
 public:
  // Throws std::invalid_argument for settings that make no sense.
  NgramSource(GuidedState &state, NgramSettings settings);

  // Host side, before the push that first names the slot: its text so far, and how many tokens may follow; more make it
  // allocate in a callback.
  void open(int slot, const std::int32_t *tokens, int count, int max_new_tokens);
  // Whether, of guided slots, the grammar chooses among the places and cuts what it refuses. At any time.
  void set_guided(bool guided) { guided_.store(guided, std::memory_order_relaxed); }

  void begin() override;
  void commit(int slot, const std::int64_t *tokens, int count) override;
  int propose(int slot, std::int32_t *tokens, int have, int capacity) override;

 private:
  // A text is in use from the first iteration that was pushed after it was opened.
  struct Opened {
    int slot = 0;
    std::uint64_t after_epoch = 0;
    std::unique_ptr<NgramIndex> text;
  };

  int choose(int slot, const NgramIndex &text, std::int32_t *tokens, int have, int capacity) const;

  GuidedState &state_;
  const NgramSettings settings_;
  std::atomic<bool> guided_{false};
  std::vector<std::unique_ptr<NgramIndex>> texts_;  // [S] callback side
  std::atomic<bool> has_opened_{false};
  std::mutex mutex_;
  std::vector<Opened> opened_;
  std::vector<std::unique_ptr<NgramIndex>> closed_;  // let go of by the next `open`
};

}  // namespace weft
