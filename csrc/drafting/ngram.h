// A text in which the places where its n-grams occurred before are found at once. Python-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft {

// Appending and finding cost one look-up for each length, however long the text is: every length of n-gram has a table
// from the n-gram to the last place after it, and each place leads to the one before.
class NgramIndex {
 public:
  static constexpr int kMaxLength = 16;

  // For n-grams of `min_length` to `max_length` tokens (1..kMaxLength), with room for `reserve` tokens; it grows
  // beyond.
  NgramIndex(int min_length, int max_length, std::size_t reserve);

  void append(std::int32_t token);
  std::size_t size() const { return text_.size(); }

  // Places in the text after earlier occurrences of what the text and `extra[0..num_extra)` end with: of the longest
  // such n-gram first, of one length the latest first, each place once, `limit` at most. Returns their number.
  int find(const std::int32_t *extra, int num_extra, std::int32_t *places, int limit) const;

  // What stands at `place` and after it, `count` tokens to `out`. Where the text ends, `extra` and then `out` itself
  // go on, so that what repeats goes on repeating.
  void copy(std::int32_t place, const std::int32_t *extra, int num_extra, std::int32_t *out, int count) const;

 private:
  struct Table {
    std::vector<std::int32_t> last;      // open addressing by n-gram: the last place after it; -1 empty
    std::vector<std::int32_t> previous;  // by place: the place before with the same n-gram, or -1
    std::size_t used = 0;
  };
  // The last tokens of a text and what follows it, the last first, and the hash of every number of them.
  struct Suffix {
    std::int32_t tokens[kMaxLength];
    std::uint64_t hashes[kMaxLength + 1];
    int length = 0;
  };

  Suffix suffix_of(std::size_t text_end, const std::int32_t *extra, int num_extra) const;
  std::size_t locate(const Table &table, const Suffix &suffix, int length) const;
  void insert(Table &table, const Suffix &suffix, int length, std::int32_t place);
  void grow(Table &table, int length);

  const int min_length_, max_length_;
  std::vector<std::int32_t> text_;
  std::vector<Table> tables_;  // [max_length - min_length + 1]
};

}  // namespace weft
