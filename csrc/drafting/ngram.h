// A text with an index of its n-grams, which finds earlier occurrences of the last tokens. Python-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft {

// Appending a token and finding cost one look-up for each n-gram length, independent of the text's length. Each length
// has a hash table from the n-gram to the last place after it, and a link from each place to the previous one with the
// same n-gram.
class NgramIndex {
 public:
  static constexpr int kMaxLength = 16;

  // For n-grams of `min_length` to `max_length` tokens (1..kMaxLength). Allocates memory for `reserve` tokens;
  // appending more tokens allocates more.
  NgramIndex(int min_length, int max_length, std::size_t reserve);

  void append(std::int32_t token);
  std::size_t size() const { return text_.size(); }

  // Finds earlier occurrences of the n-grams at the end of the text plus `extra[0..num_extra)`. Writes the place after
  // each occurrence, each place once. Places of longer n-grams come first; for the same length, later places come
  // first. Returns their number, at most `limit`.
  int find(const std::int32_t *extra, int num_extra, std::int32_t *places, int limit) const;

  // Copies `count` tokens to `out`, starting at `place`. The source is the text, then `extra`, then `out` itself, so
  // that a repetition continues past the end of the text.
  void copy(std::int32_t place, const std::int32_t *extra, int num_extra, std::int32_t *out, int count) const;

 private:
  struct Table {
    std::vector<std::int32_t> last;      // open addressing by n-gram: the last place after it; -1 empty
    std::vector<std::int32_t> previous;  // by place: the previous place with the same n-gram, or -1
    std::size_t used = 0;
  };
  // The last tokens of a text plus its extra tokens, last one first. hashes[n] is the hash of the first n of them.
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
