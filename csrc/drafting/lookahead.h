// Lookahead decoding: drafts are n-grams that the model generates in parallel with the text. Python-free.
//
// A slot has a window of tokens. Each iteration's forward predicts the token after each of them. The predicted tokens
// form the next window. So each column of the window is a chain, and its last n tokens are an n-gram from the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "drafting/draft_sources.h"
#include "drafting/ngram_pool.h"
#include "drafting/slot_texts.h"
#include "guided/snapshot_switch.h"
#include "guided/state.h"

namespace weft {

struct LookaheadSettings {
  int window = 4;        // columns
  int ngram = 3;         // tokens of an n-gram: the last token of the text and the drafts after it
  int verification = 4;  // n-grams that are kept for each first token
};

// One slot's text: the n-grams of the text and of the slot's window.
class LookaheadText {
 public:
  // `first` is the window that the first iteration reads, of `settings.window` tokens. Allocates memory for the n-grams
  // of `reserve` different first tokens; more of them allocate more.
  LookaheadText(LookaheadSettings settings, const std::vector<std::int32_t> &first, std::size_t reserve);

  void append(std::int32_t token);
  // Call before appending the tokens that an iteration committed.
  void begin() { size_before_ = size_; }
  // Appends the predicted tokens `window` to the columns. `position` is the position of the last committed token that
  // the predicting iteration read. Does nothing unless the last appended tokens are that iteration's, because otherwise
  // the prediction is for another text.
  void follow(const std::int64_t *window, std::int64_t position);

  // Finds the n-grams that begin with `first`, newest last. Each is given without `first`: `num_following()` tokens.
  int find(std::int32_t first, const std::int32_t **tokens) const { return pool_.find(first, tokens); }
  int num_following() const { return pool_.num_following(); }
  std::int32_t last() const { return recent_[static_cast<std::size_t>(num_recent_ - 1)]; }
  bool is_empty() const { return num_recent_ == 0; }

 private:
  // Appends a token to a chain, which keeps its last `ngram` tokens. A full chain is also added to the pool. Returns
  // the new length.
  int extend(std::int32_t *chain, int length, std::int32_t token);

  const LookaheadSettings settings_;
  NgramPool pool_;
  std::int64_t size_ = 0, size_before_ = 0;
  std::vector<std::int32_t> recent_;   // [ngram] the text's last tokens
  std::vector<std::int32_t> columns_;  // [window, ngram]
  int num_recent_ = 0, depth_ = 1;
};

// Proposes the newest n-gram that begins with the last token of the text and its drafts. For a guided slot, it may
// propose the one with the longest prefix that the grammar accepts (`set_guided`).
class LookaheadSource final : public DraftSource {
 public:
  static constexpr int kMaxWindow = 16, kMaxNgram = 16, kMaxVerification = 32;

  // `window` [S+1, settings.window + 1] is pinned host memory, kept alive by the caller. For each slot it has the
  // tokens that the last iteration predicted for the slot's window, and then the position of the last committed token
  // that this iteration read. Throws std::invalid_argument for settings out of range.
  LookaheadSource(GuidedState &state, LookaheadSettings settings, const std::int64_t *window);

  // Host side: sets the slot's text so far, the number of tokens that may follow, the settings of its request (each at
  // most the source's), and the window of its first iteration. Call it before the first push with the slot. Throws
  // std::invalid_argument for settings out of range, and for fewer window tokens than columns.
  void open(int slot, const std::int32_t *tokens, int count, int max_new_tokens, LookaheadSettings settings,
            const std::vector<std::int32_t> &first);
  // Host side: sets whether guided slots use the n-gram with the longest prefix that the grammar accepts, and only that
  // prefix. Applies from the next push on.
  void set_guided(bool guided) { guided_.set(guided); }

  void begin() override {
    texts_.begin();
    guided_.begin();
  }
  void commit(int slot, const std::int64_t *tokens, int count) override;
  void observe(int slot) override;
  int propose(int slot, std::int32_t *tokens, int have, int capacity) override;

 private:
  GuidedState &state_;
  const LookaheadSettings settings_;
  const std::int64_t *window_;
  SnapshotSwitch guided_;
  SlotTexts<LookaheadText> texts_;
};

}  // namespace weft
