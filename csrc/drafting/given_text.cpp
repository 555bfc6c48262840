#include "drafting/given_text.h"

#include <algorithm>

namespace weft {

void GivenText::append(std::int32_t token) {
  if (is_inside_) {
    if (place_ < text_.size() && text_[place_] == token) {
      ++place_;
      return;
    }
    is_inside_ = false;
    num_outside_ = 0;
  }
  if (num_outside_ == kRejoin)
    std::move(outside_ + 1, outside_ + kRejoin, outside_);
  else
    ++num_outside_;
  outside_[num_outside_ - 1] = token;
  if (num_outside_ < kRejoin) return;
  const auto from = text_.begin() + static_cast<std::ptrdiff_t>(place_);
  const auto to = from + std::min<std::ptrdiff_t>(text_.end() - from, kReach + kRejoin);
  const auto found = std::search(from, to, outside_, outside_ + kRejoin);
  if (found == to) return;
  place_ = static_cast<std::size_t>(found - text_.begin()) + kRejoin;
  is_inside_ = true;
}

int GivenText::next(std::int32_t *out, int capacity) const {
  if (!is_inside_ || capacity < 1) return 0;
  const int count = static_cast<int>(std::min(text_.size() - place_, static_cast<std::size_t>(capacity)));
  std::copy_n(text_.begin() + static_cast<std::ptrdiff_t>(place_), count, out);
  return count;
}

}  // namespace weft
