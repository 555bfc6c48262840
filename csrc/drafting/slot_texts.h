// One text per slot, which the host sets and the callback thread uses. Python-free.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "guided/state.h"

namespace weft {

// A text applies from the first snapshot pushed after it was opened; iterations in flight keep the old text.
template <class Text>
class SlotTexts {
 public:
  explicit SlotTexts(const GuidedState &state) : state_(state) {
    texts_.resize(static_cast<std::size_t>(state.shape().num_slots));
    opened_.reserve(texts_.size());
    closed_.reserve(2 * texts_.size());
  }

  // Host side: sets the slot's text, or null for none. Call it before the first push with the slot's new request.
  // Throws std::invalid_argument for a slot out of range. Also destroys texts that were replaced earlier, because
  // freeing a long text would delay the callback thread.
  void open(int slot, std::unique_ptr<Text> text) {
    if (slot < 0 || slot >= state_.shape().num_slots)
      throw std::invalid_argument("slot " + std::to_string(slot) + " is out of range");
    std::vector<std::unique_ptr<Text>> garbage;
    garbage.reserve(2 * texts_.size());  // becomes `closed_`, so that the callback side seldom allocates
    std::lock_guard<std::mutex> lock(mutex_);
    garbage.swap(closed_);
    opened_.push_back({slot, state_.pushed_epoch(), std::move(text)});
    has_opened_.store(true, std::memory_order_release);
  }

  // Callback side: call it in each iteration before `of`.
  void begin() {
    if (!has_opened_.load(std::memory_order_acquire)) return;
    std::lock_guard<std::mutex> lock(mutex_);
    std::size_t kept = 0;
    for (Opened &opened : opened_) {
      if (opened.after_epoch < state_.epoch()) {
        std::swap(texts_[static_cast<std::size_t>(opened.slot)], opened.text);
        if (opened.text) closed_.push_back(std::move(opened.text));
      } else {
        std::swap(opened_[kept++], opened);
      }
    }
    opened_.resize(kept);
    has_opened_.store(!opened_.empty(), std::memory_order_relaxed);
  }

  // Callback side: returns the slot's text, or null.
  Text *of(int slot) const { return texts_[static_cast<std::size_t>(slot)].get(); }

 private:
  struct Opened {
    int slot = 0;
    std::uint64_t after_epoch = 0;
    std::unique_ptr<Text> text;
  };

  const GuidedState &state_;
  std::vector<std::unique_ptr<Text>> texts_;  // [S] callback side
  std::atomic<bool> has_opened_{false};
  std::mutex mutex_;
  std::vector<Opened> opened_;
  std::vector<std::unique_ptr<Text>> closed_;  // the next `open` destroys them
};

}  // namespace weft
