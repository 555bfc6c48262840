#include "drafting/ngram_pool.h"

#include <algorithm>
#include <stdexcept>

namespace weft {

NgramPool::NgramPool(int length, int set_size, std::size_t reserve) : following_(length - 1), set_size_(set_size) {
  if (length < 2 || set_size < 1)
    throw std::invalid_argument("an n-gram has 2 tokens or more, and of a first token one at least is kept");
  std::size_t size = 64;
  while (size < 2 * reserve) size *= 2;
  table_.assign(size, -1);
  entries_.reserve(reserve);
  tokens_.reserve(reserve * static_cast<std::size_t>(set_size_ * following_));
}

// Returns the index of the first token's entry in the hash table, or of the empty entry where it belongs.
std::size_t NgramPool::locate(std::int32_t first) const {
  const std::size_t bits = table_.size() - 1;
  std::uint64_t hash = static_cast<std::uint32_t>(first) * 0x9E3779B97F4A7C15u;
  std::size_t at = static_cast<std::size_t>(hash >> 29) & bits;
  while (table_[at] >= 0 && entries_[static_cast<std::size_t>(table_[at])].first != first) at = (at + 1) & bits;
  return at;
}

void NgramPool::grow() {
  table_.assign(2 * table_.size(), -1);
  for (std::size_t i = 0; i < entries_.size(); ++i) table_[locate(entries_[i].first)] = static_cast<std::int32_t>(i);
}

void NgramPool::insert(const std::int32_t *ngram) {
  std::int32_t number = table_[locate(ngram[0])];
  if (number < 0) {
    if (2 * (entries_.size() + 1) > table_.size()) grow();
    number = static_cast<std::int32_t>(entries_.size());
    table_[locate(ngram[0])] = number;
    entries_.push_back({ngram[0], 0});
    tokens_.resize(tokens_.size() + static_cast<std::size_t>(set_size_ * following_));
  }
  Entry &entry = entries_[static_cast<std::size_t>(number)];
  std::int32_t *const set = tokens_.data() + static_cast<std::ptrdiff_t>(number) * set_size_ * following_;
  const auto at = [&](int i) { return set + static_cast<std::ptrdiff_t>(i) * following_; };
  int place = 0;  // the n-gram to remove: an equal one, or the oldest of a full set
  while (place < entry.count && !std::equal(at(place), at(place + 1), ngram + 1)) ++place;
  if (place == entry.count) {
    if (entry.count < set_size_)
      ++entry.count;
    else
      place = 0;
  }
  std::copy(at(std::min(place + 1, entry.count)), at(entry.count), at(place));
  std::copy(ngram + 1, ngram + 1 + following_, at(entry.count - 1));
}

int NgramPool::find(std::int32_t first, const std::int32_t **tokens) const {
  const std::int32_t number = table_[locate(first)];
  if (number < 0) return 0;
  *tokens = tokens_.data() + static_cast<std::ptrdiff_t>(number) * set_size_ * following_;
  return entries_[static_cast<std::size_t>(number)].count;
}

}  // namespace weft
