// Remembers which source proposed each of a slot's last drafts. Python-free.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "drafting/slot_texts.h"
#include "guided/state.h"

namespace weft {

// A ring of draft sources for each slot. The callback side writes it while the host reads the sources of accepted
// drafts. This is safe because the iterations in flight (at most two) write later places, and the ring is long enough
// for all of them.
class DraftOrigins {
 public:
  static constexpr int kPlaces = 256;
  static constexpr int kNoSource = -1;  // of a draft that no source proposed

  explicit DraftOrigins(GuidedState &state)
      : rings_(static_cast<std::size_t>(state.shape().num_slots)), texts_(state) {}

  // Host side: starts a new text for the slot, with no committed tokens. Call it before the first push with the slot.
  void open(int slot) {
    auto ring = std::make_shared<Ring>();
    texts_.open(slot, std::make_unique<Shared>(Shared{ring}));
    rings_[static_cast<std::size_t>(slot)] = std::move(ring);
  }
  // Host side: returns the sources of `count` accepted drafts. `first` is the first one's token number, counted since
  // `open`. For a committed token that was sampled the answer has no meaning.
  std::vector<int> of(int slot, std::int64_t first, int count) const {
    const auto &ring = rings_.at(static_cast<std::size_t>(slot));
    std::vector<int> sources(static_cast<std::size_t>(count), kNoSource);
    for (int i = 0; ring && i < count; ++i)
      sources[static_cast<std::size_t>(i)] = ring->places[place(first + i)].load(std::memory_order_relaxed);
    return sources;
  }

  // Callback side: call `begin` in each iteration before the others.
  void begin() { texts_.begin(); }
  void commit(int slot, int count) {
    if (Shared *text = texts_.of(slot)) text->ring->committed += count;
  }
  void propose(int slot, int from, int to, int source) {
    Shared *text = texts_.of(slot);
    for (int j = from; text && j < to; ++j)
      text->ring->places[place(text->ring->committed + j)].store(static_cast<std::int8_t>(source),
                                                                 std::memory_order_relaxed);
  }

 private:
  struct Ring {
    std::int64_t committed = 0;  // callback side
    std::array<std::atomic<std::int8_t>, kPlaces> places{};
  };
  struct Shared {
    std::shared_ptr<Ring> ring;
  };
  static std::size_t place(std::int64_t position) { return static_cast<std::size_t>(position % kPlaces); }

  std::vector<std::shared_ptr<Ring>> rings_;  // [S] host side
  SlotTexts<Shared> texts_;
};

}  // namespace weft
