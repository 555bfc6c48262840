// Drafts that the host proposes. Their sources are text given with the request, text that the grammar forces, n-grams
// of the text, and n-grams from lookahead decoding. Python-free.
//
// `run` is a host task on the grammar's stream, after the `commit` of an iteration. Sources propose in order. A later
// one may continue the drafts of those before it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "drafting/draft_origins.h"
#include "drafting/draft_sources.h"
#include "guided/state.h"

namespace weft {

struct ProposalCounters {
  std::uint64_t calls = 0, nanoseconds = 0, max_nanoseconds = 0;
  std::vector<std::uint64_t> tokens;  // proposed tokens, by source
};

class Proposals {
 public:
  // Pinned host memory, kept alive by the caller: `verified` [S+1, K+2] and `proposed` [K, S+1], laid out like
  // `verified` and `drafts` of GuidedBuffers. The caller fills `proposed` with -1. The state outlives the proposals.
  // Throws std::invalid_argument for more than kMaxProposed drafts.
  Proposals(GuidedState &state, const std::int64_t *verified, std::int64_t *proposed,
            std::vector<std::unique_ptr<DraftSource>> sources);

  // For each slot of the current snapshot: passes the committed tokens to the sources, and writes up to `num_drafts`
  // drafts, followed by -1. Must run once for every commit, with 0 if no drafts are needed, because only this call
  // reads the verified tokens.
  void run(int num_drafts);
  // Returns `run(num_drafts)`, for 0..K drafts, as a host task that is valid as long as the proposals live.
  GuidedState::Call task(int num_drafts);

  // The source of each draft of a slot, as an index into `sources`. The host must open a slot here whenever it opens
  // the slot in the sources.
  DraftOrigins &origins() { return origins_; }

  // Readable at any time.
  ProposalCounters counters() const;

 private:
  struct Task {
    Proposals *proposals;
    int num_drafts;
    std::string name;
  };
  struct AtomicCounters {
    std::atomic<std::uint64_t> calls{0}, nanoseconds{0}, max_nanoseconds{0};
  };

  void commit(int slot);
  void propose(int slot, int num_drafts);

  GuidedState &state_;
  const std::int64_t *verified_;
  std::int64_t *proposed_;
  const std::vector<std::unique_ptr<DraftSource>> sources_;
  DraftOrigins origins_;
  std::vector<Task> tasks_;  // [K+1]
  AtomicCounters counters_;
  std::vector<std::atomic<std::uint64_t>> num_tokens_;  // by source
};

}  // namespace weft
