// Where drafts come from that the host proposes. Python-free.
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

// Its methods run on the callback thread, those of one slot one after another; they never raise.
class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // Before anything else of an iteration.
  virtual void begin() {}
  // The tokens that were committed to the slot since the last call.
  virtual void commit(int /*slot*/, const std::int64_t * /*tokens*/, int /*count*/) {}
  // After `commit`, where drafts are wanted: what the iteration left for the slot besides tokens.
  virtual void observe(int /*slot*/) {}
  // Goes on after `tokens[0..have)`, drafts that follow the committed text: writes tokens up to `tokens[capacity)` and
  // returns how many.
  virtual int propose(int slot, std::int32_t *tokens, int have, int capacity) = 0;
};

// The text that was given with the request, while the answer is in it (GivenText).
class GivenSource final : public DraftSource {
 public:
  explicit GivenSource(GuidedState &state) : state_(state), guided_(state), texts_(state) {}

  // Host side, before the push that first names the slot: the text, none of it for a request without; and the answer so
  // far of a request that goes on. Throws std::invalid_argument for a token that is not in the vocabulary.
  void open(int slot, const std::vector<std::int32_t> &text, const std::int32_t *answer, int num_answered);
  // Whether, of guided slots, the grammar cuts what it refuses: from the next push on. Host side.
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
  // Whether, of guided slots, the grammar chooses among the places and cuts what it refuses: from the next push on.
  // Host side.
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
