#include "drafting/ngram.h"

#include <algorithm>
#include <stdexcept>

namespace weft {
namespace {

std::uint64_t mixed(std::uint64_t hash, std::int32_t token) {
  hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

}  // namespace

NgramIndex::NgramIndex(int min_length, int max_length, std::size_t reserve)
    : min_length_(min_length), max_length_(max_length) {
  if (min_length < 1 || max_length < min_length || max_length > kMaxLength)
    throw std::invalid_argument("n-grams have 1 to 16 tokens, and the shortest no more than the longest");
  std::size_t size = 64;
  while (size < 2 * reserve) size *= 2;
  text_.reserve(reserve);
  tables_.resize(static_cast<std::size_t>(max_length - min_length) + 1);
  for (Table &table : tables_) {
    table.last.assign(size, -1);
    table.previous.reserve(reserve);
  }
}

NgramIndex::Suffix NgramIndex::suffix_of(std::size_t text_end, const std::int32_t *extra, int num_extra) const {
  Suffix suffix;
  suffix.hashes[0] = 0;
  const std::size_t total = text_end + static_cast<std::size_t>(num_extra);
  suffix.length = static_cast<int>(std::min<std::size_t>(total, static_cast<std::size_t>(max_length_)));
  for (int i = 0; i < suffix.length; ++i) {
    const std::size_t at = total - 1 - static_cast<std::size_t>(i);
    suffix.tokens[i] = at < text_end ? text_[at] : extra[at - text_end];
    suffix.hashes[i + 1] = mixed(suffix.hashes[i], suffix.tokens[i]);
  }
  return suffix;
}

// Returns the index of the n-gram's entry in the hash table, or of the empty entry where it belongs.
std::size_t NgramIndex::locate(const Table &table, const Suffix &suffix, int length) const {
  const std::size_t bits = table.last.size() - 1;
  const auto is_it = [&](std::int32_t place) {
    for (int i = 0; i < length; ++i)
      if (text_[static_cast<std::size_t>(place - 1 - i)] != suffix.tokens[i]) return false;
    return true;
  };
  std::size_t at = suffix.hashes[length] & bits;
  while (table.last[at] >= 0 && !is_it(table.last[at])) at = (at + 1) & bits;
  return at;
}

void NgramIndex::append(std::int32_t token) {
  // The n-grams at the end of the text enter the tables now, because they have a continuation only from now on.
  const auto place = static_cast<std::int32_t>(text_.size());
  const Suffix suffix = suffix_of(text_.size(), nullptr, 0);
  text_.push_back(token);
  for (int length = min_length_; length <= max_length_; ++length) {
    Table &table = tables_[static_cast<std::size_t>(length - min_length_)];
    table.previous.push_back(-1);
    if (length <= suffix.length) insert(table, suffix, length, place);
  }
}

void NgramIndex::insert(Table &table, const Suffix &suffix, int length, std::int32_t place) {
  std::int32_t &last = table.last[locate(table, suffix, length)];
  table.previous[static_cast<std::size_t>(place)] = last;
  const bool is_new = last < 0;
  last = place;
  if (is_new && 2 * ++table.used > table.last.size()) grow(table, length);
}

void NgramIndex::grow(Table &table, int length) {
  std::vector<std::int32_t> old(2 * table.last.size(), -1);
  old.swap(table.last);
  for (std::int32_t place : old) {
    if (place < 0) continue;
    const Suffix suffix = suffix_of(static_cast<std::size_t>(place), nullptr, 0);
    table.last[locate(table, suffix, length)] = place;
  }
}

int NgramIndex::find(const std::int32_t *extra, int num_extra, std::int32_t *places, int limit) const {
  const Suffix suffix = suffix_of(text_.size(), extra, num_extra);
  int count = 0;
  for (int length = std::min(max_length_, suffix.length); length >= min_length_ && count < limit; --length) {
    const Table &table = tables_[static_cast<std::size_t>(length - min_length_)];
    std::int32_t place = table.last[locate(table, suffix, length)];
    for (; place >= 0 && count < limit; place = table.previous[static_cast<std::size_t>(place)])
      if (std::find(places, places + count, place) == places + count) places[count++] = place;
  }
  return count;
}

void NgramIndex::copy(std::int32_t place, const std::int32_t *extra, int num_extra, std::int32_t *out,
                      int count) const {
  for (int i = 0; i < count; ++i) {
    const std::size_t at = static_cast<std::size_t>(place) + static_cast<std::size_t>(i);
    const auto beyond = static_cast<int>(at) - static_cast<int>(text_.size());
    out[i] = beyond < 0 ? text_[at] : beyond < num_extra ? extra[beyond] : out[beyond - num_extra];
  }
}

}  // namespace weft
