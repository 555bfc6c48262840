// Drafts that the host proposes: what was given with the request, what the grammar forces, what followed the same
// tokens before, what the model made beside the text. Python-free.
//
// `run` is a task of the grammar's stream, after the `commit` of an iteration. Sources are asked in order; each goes
// on after what those before it gave.
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
  std::vector<std::uint64_t> tokens;  // proposed, by source
};

class Proposals {
 public:
  // Pinned host memory, kept alive by the caller: `verified` [S+1, K+2] and `proposed` [K, S+1] as GuidedBuffers has
  // `verified` and `drafts`; `proposed` comes filled with -1. The state outlives the proposals. Throws
  // std::invalid_argument for more than kMaxProposed drafts.
  Proposals(GuidedState &state, const std::int64_t *verified, std::int64_t *proposed,
            std::vector<std::unique_ptr<DraftSource>> sources);

  // Tells the sources what was committed to the slots of the snapshot in work, and writes up to `num_drafts` drafts for
  // each; after them -1. Runs once for every commit, with 0 where no draft is wanted: what is verified is read only
  // here.
  void run(int num_drafts);
  // `run(num_drafts)`, 0..K, as a host task that lives as long as the proposals.
  GuidedState::Call task(int num_drafts);

  // Which source, by its place in their order, proposed the drafts of a slot: its text is opened with the sources', and
  // read by the host.
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
