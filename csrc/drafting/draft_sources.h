// The sources of drafts that the host proposes. Python-free.
#pragma once

#include <cstdint>
#include <vector>

#include "drafting/given_text.h"
#include "drafting/ngram.h"
#include "drafting/slot_texts.h"
#include "guided/snapshot_switch.h"
#include "guided/state.h"

namespace weft {

constexpr int kMaxProposed = 64;  // drafts of a slot at once

// A source of drafts. `begin` runs on the callback thread, the other methods on it and its workers, one at a time for
// each slot. None may throw.
class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // Called first in each iteration.
  virtual void begin() {}
  // Receives the tokens that were committed to the slot since the last call.
  virtual void commit(int /*slot*/, const std::int64_t * /*tokens*/, int /*count*/) {}
  // Called after `commit`, if drafts are wanted: reads the iteration's other results for the slot.
  virtual void observe(int /*slot*/) {}
  // Continues the drafts `tokens[0..have)`, which follow the committed text: writes tokens up to `tokens[capacity)` and
  // returns their number.
  virtual int propose(int slot, std::int32_t *tokens, int have, int capacity) = 0;
};

// Drafts from the text given with the request, as long as the answer follows it (GivenText).
class GivenSource final : public DraftSource {
 public:
  explicit GivenSource(GuidedState &state) : state_(state), guided_(state), texts_(state) {}

  // Host side: sets the slot's given text (empty for a request without one), and for a resumed request the answer so
  // far. Call it before the first push with the slot. Throws std::invalid_argument for a token outside the vocabulary.
  void open(int slot, const std::vector<std::int32_t> &text, const std::int32_t *answer, int num_answered);
  // Host side: sets whether the drafts of guided slots end before the first one that the grammar refuses. Applies from
  // the next push on.
  void set_guided(bool guided) { guided_.set(guided); }

  void begin() override {
    texts_.begin();
    guided_.begin();
  }
  void commit(int slot, const std::int64_t *tokens, int count) override;
  int propose(int slot, std::int32_t *tokens, int have, int capacity) override;

 private:
  GuidedState &state_;
  SnapshotSwitch guided_;
  SlotTexts<GivenText> texts_;
};

// Drafts from text that the grammar forces.
class ForcedSource final : public DraftSource {
 public:
  explicit ForcedSource(GuidedState &state) : state_(state) {}
  int propose(int slot, std::int32_t *tokens, int have, int capacity) override;

 private:
  GuidedState &state_;
};

struct NgramSettings {
  int min_length = 1, max_length = 4;  // of the n-grams
  int candidates = 8;                  // earlier occurrences that are tried against the grammar
};

// Prompt lookup: drafts are the continuation of an earlier occurrence of the last tokens in the slot's prompt and
// answer.
class NgramSource final : public DraftSource {
 public:
  // Throws std::invalid_argument for settings out of range, and for a min_length above max_length.
  NgramSource(GuidedState &state, NgramSettings settings);

  // Host side: sets the slot's text so far, and the number of tokens that may follow. Call it before the first push
  // with the slot. If more tokens follow, the callback thread allocates memory.
  void open(int slot, const std::int32_t *tokens, int count, int max_new_tokens);
  // Host side: sets whether guided slots use the continuation with the longest prefix that the grammar accepts, and
  // only that prefix. Applies from the next push on.
  void set_guided(bool guided) { guided_.set(guided); }

  void begin() override {
    texts_.begin();
    guided_.begin();
  }
  void commit(int slot, const std::int64_t *tokens, int count) override;
  int propose(int slot, std::int32_t *tokens, int have, int capacity) override;

 private:
  int choose(int slot, const NgramIndex &text, std::int32_t *tokens, int have, int capacity) const;

  GuidedState &state_;
  const NgramSettings settings_;
  SnapshotSwitch guided_;
  SlotTexts<NgramIndex> texts_;
};

}  // namespace weft
