#include "guided/flight_log.h"

#include <algorithm>

namespace weft {

void FlightLog::end() {
  record_[0] = static_cast<std::int64_t>(record_.size());
  std::lock_guard<std::mutex> lock(mutex_);
  while (words_.size() - used_ < record_.size()) {
    // The first word of a record is its length.
    const auto oldest = static_cast<std::size_t>(words_[first_]);
    first_ = (first_ + oldest) % words_.size();
    used_ -= oldest;
  }
  const std::size_t start = (first_ + used_) % words_.size();
  const std::size_t before_wrap = std::min(record_.size(), words_.size() - start);
  const auto middle = record_.begin() + static_cast<std::ptrdiff_t>(before_wrap);
  std::copy(record_.begin(), middle, words_.begin() + static_cast<std::ptrdiff_t>(start));
  std::copy(middle, record_.end(), words_.begin());
  used_ += record_.size();
}

std::vector<std::int64_t> FlightLog::records() const {
  std::vector<std::int64_t> records(words_.size());
  std::lock_guard<std::mutex> lock(mutex_);
  const std::size_t before_wrap = std::min(used_, words_.size() - first_);
  const auto first = words_.begin() + static_cast<std::ptrdiff_t>(first_);
  std::copy(first, first + static_cast<std::ptrdiff_t>(before_wrap), records.begin());
  std::copy(words_.begin(), words_.begin() + static_cast<std::ptrdiff_t>(used_ - before_wrap),
            records.begin() + static_cast<std::ptrdiff_t>(before_wrap));
  records.resize(used_);
  return records;
}

}  // namespace weft
