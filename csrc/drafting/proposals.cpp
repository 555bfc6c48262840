#include "drafting/proposals.h"

#include <algorithm>
#include <stdexcept>

#include "support/timer.h"

namespace weft {

Proposals::Proposals(GuidedState &state, const std::int64_t *verified, std::int64_t *proposed,
                     std::vector<std::unique_ptr<DraftSource>> sources)
    : state_(state),
      verified_(verified),
      proposed_(proposed),
      sources_(std::move(sources)),
      origins_(state),
      num_tokens_(sources_.size()) {
  const int max_drafts = state.shape().max_drafts;
  if (max_drafts > kMaxProposed)
    throw std::invalid_argument("at most " + std::to_string(kMaxProposed) + " drafts are proposed");
  for (int count = 0; count <= max_drafts; ++count)
    tasks_.push_back({this, count, "weft.propose(" + std::to_string(count) + ")"});
}

void Proposals::run(int num_drafts) {
  const Timed<AtomicCounters> timed(counters_);
  for (const auto &source : sources_) source->begin();
  origins_.begin();
  state_.each_current([&](int slot) {
    commit(slot);
    propose(slot, num_drafts);
  });
}

void Proposals::commit(int slot) {
  const int max_drafts = state_.shape().max_drafts;
  const std::int64_t *row = verified_ + static_cast<std::size_t>(slot) * static_cast<std::size_t>(max_drafts + 2);
  const auto accepted = static_cast<int>(std::clamp<std::int64_t>(row[0], 0, max_drafts));
  // A negative token means that sampling failed. It ends the request, so ignore the tokens after it.
  const auto *end = std::find_if(row + 1, row + accepted + 2, [](std::int64_t token) { return token < 0; });
  const auto count = static_cast<int>(end - row - 1);
  for (const auto &source : sources_) source->commit(slot, row + 1, count);
  origins_.commit(slot, count);
}

void Proposals::propose(int slot, int num_drafts) {
  const int max_drafts = state_.shape().max_drafts;
  std::int32_t tokens[kMaxProposed];
  int have = 0;
  if (num_drafts > 0)
    for (const auto &source : sources_) source->observe(slot);
  for (std::size_t i = 0; i < sources_.size() && have < num_drafts; ++i) {
    const int more = sources_[i]->propose(slot, tokens, have, num_drafts);
    num_tokens_[i].fetch_add(static_cast<std::uint64_t>(more), std::memory_order_relaxed);
    origins_.propose(slot, have, have + more, static_cast<int>(i));
    have += more;
  }
  origins_.propose(slot, have, max_drafts, DraftOrigins::kNoSource);
  for (int j = 0; j < max_drafts; ++j)
    proposed_[static_cast<std::size_t>(j) * static_cast<std::size_t>(state_.shape().num_slots + 1) +
              static_cast<std::size_t>(slot)] = j < have ? tokens[j] : -1;
}

GuidedState::Call Proposals::task(int num_drafts) {
  if (num_drafts < 0 || num_drafts > state_.shape().max_drafts)
    throw std::invalid_argument(std::to_string(num_drafts) + " drafts are not in 0..K");
  Task &task = tasks_[static_cast<std::size_t>(num_drafts)];
  const auto run = [](void *data) {
    const Task &mine = *static_cast<Task *>(data);
    mine.proposals->run(mine.num_drafts);
  };
  return {run, &task, task.name.c_str()};
}

ProposalCounters Proposals::counters() const {
  ProposalCounters counters{counters_.calls.load(std::memory_order_relaxed),
                            counters_.nanoseconds.load(std::memory_order_relaxed),
                            counters_.max_nanoseconds.load(std::memory_order_relaxed),
                            {}};
  for (const auto &count : num_tokens_) counters.tokens.push_back(count.load(std::memory_order_relaxed));
  return counters;
}

}  // namespace weft
