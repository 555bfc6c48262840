// N-grams that the model makes beside the text, as drafts: lookahead decoding. Python-free.
//
// A slot has a window of tokens, of which every iteration's forward gives the tokens that follow them: these are the
// next window. So each column of the window is a chain, whose last n tokens are an n-gram of the model's own making.
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
  int ngram = 3;         // tokens of an n-gram: with the last token of the text, one more than its drafts
  int verification = 4;  // n-grams that are kept of one first token
};

// One slot's text: the n-grams of it and of its window.
class LookaheadText {
 public:
  // `first` is the window that the first iteration reads, of `settings.window` tokens.
  LookaheadText(LookaheadSettings settings, const std::vector<std::int32_t> &first, std::size_t reserve);

  void append(std::int32_t token);
  // Before the tokens that an iteration committed are appended.
  void begin() { size_before_ = size_; }
  // What follows the window's tokens, found by the iteration that read the text up to its token at `position`. Nothing
  // happens where that is not the one whose tokens were appended last.
  void follow(const std::int64_t *window, std::int64_t position);

  // Of the n-grams that begin with `first`, the newest last: `num_following()` tokens each.
  int find(std::int32_t first, const std::int32_t **tokens) const { return pool_.find(first, tokens); }
  int num_following() const { return pool_.num_following(); }
  std::int32_t last() const { return recent_[static_cast<std::size_t>(num_recent_ - 1)]; }
  bool is_empty() const { return num_recent_ == 0; }

 private:
  // Appends to a chain of which the last `ngram` tokens are kept; what is whole goes into the pool.
  int extend(std::int32_t *chain, int length, std::int32_t token);

  const LookaheadSettings settings_;
  NgramPool pool_;
  std::int64_t size_ = 0, size_before_ = 0;
  std::vector<std::int32_t> recent_;   // [ngram] the text's last tokens
  std::vector<std::int32_t> columns_;  // [window, ngram]
  int num_recent_ = 0, depth_ = 1;
};

// The n-gram that was last seen to begin with the text's last token; of a guided slot, the one that its grammar takes
// for longest.
class LookaheadSource final : public DraftSource {
 public:
  static constexpr int kMaxWindow = 16, kMaxNgram = 16, kMaxVerification = 32;

  // `window` [S+1, settings.window + 1] is pinned host memory, kept alive by the caller: what the last iteration found
  // to follow each slot's window, and the position of the token it began at. Throws std::invalid_argument for settings
  // that make no sense.
  LookaheadSource(GuidedState &state, LookaheadSettings settings, const std::int64_t *window);

  // Host side, before the push that first names the slot: its text so far, how many tokens may follow, the settings of
  // its request, none beyond the source's, and the window that its first iteration reads.
  void open(int slot, const std::int32_t *tokens, int count, int max_new_tokens, LookaheadSettings settings,
            const std::vector<std::int32_t> &first);
  // Whether, of guided slots, the grammar chooses and cuts: from the next push on. Host side.
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
