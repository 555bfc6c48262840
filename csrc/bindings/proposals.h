// The Python class of the proposals, for the bindings that ask where drafts are from.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "drafting/lookahead.h"
#include "drafting/proposals.h"
#include "guided/state.h"

namespace weft {

// The Proposals object, with pointers to the sources that have methods for the host.
struct BoundProposals {
  GivenSource *given = nullptr;
  NgramSource *ngram = nullptr;
  LookaheadSource *lookahead = nullptr;
  LookaheadSettings sizes;  // lookahead's settings; a request may have smaller ones
  std::vector<std::string> names;
  std::unique_ptr<Proposals> native;

  BoundProposals(GuidedState &state, const HostArray<const std::int64_t, 2> &verified,
                 const HostArray<std::int64_t, 2> &proposed, bool has_given, bool forced,
                 std::optional<NgramSettings> settings, std::optional<LookaheadSettings> ahead,
                 const std::optional<HostArray<const std::int64_t, 2>> &window) {
    const auto slots = static_cast<std::size_t>(state.shape().num_slots) + 1;
    const auto drafts = static_cast<std::size_t>(state.shape().max_drafts);
    std::vector<std::unique_ptr<DraftSource>> sources;
    if (has_given) {
      auto source = std::make_unique<GivenSource>(state);
      given = source.get();
      sources.push_back(std::move(source));
      names.push_back("given");
    }
    if (forced) {
      sources.push_back(std::make_unique<ForcedSource>(state));
      names.push_back("forced");
    }
    if (settings) {
      auto source = std::make_unique<NgramSource>(state, *settings);
      ngram = source.get();
      sources.push_back(std::move(source));
      names.push_back("ngram");
    }
    if (ahead) {
      if (!window) throw std::invalid_argument("lookahead needs the array of its windows");
      sizes = *ahead;
      const auto width = static_cast<std::size_t>(std::max(sizes.window, 0)) + 1;
      auto source = std::make_unique<LookaheadSource>(state, sizes, host_data(*window, "window", {slots, width}));
      lookahead = source.get();
      sources.push_back(std::move(source));
      names.push_back("lookahead");
    }
    native = std::make_unique<Proposals>(state, host_data(verified, "verified", {slots, drafts + 2}),
                                         host_data(proposed, "proposed", {drafts, slots}), std::move(sources));
  }
};

}  // namespace weft
