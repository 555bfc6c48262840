// The newest n-grams, indexed by their first token. Python-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft {

// Keeps the last `set_size` distinct n-grams for each first token. Inserting an n-gram again makes it the newest.
class NgramPool {
 public:
  // For n-grams of `length` >= 2 tokens. Allocates memory for `reserve` different first tokens; more of them allocate
  // more.
  NgramPool(int length, int set_size, std::size_t reserve);

  // Inserts the n-gram `ngram[0..length)`.
  void insert(const std::int32_t *ngram);

  // Finds the n-grams that begin with `first`, newest last. Each is given without `first`: `length - 1` tokens, one
  // n-gram after another. Returns their number; `tokens` is valid until the next `insert`.
  int find(std::int32_t first, const std::int32_t **tokens) const;

  int num_following() const { return following_; }

 private:
  struct Entry {
    std::int32_t first;
    std::int32_t count;
  };

  std::size_t locate(std::int32_t first) const;
  void grow();

  const int following_, set_size_;
  std::vector<std::int32_t> table_;  // open addressing by first token: an entry; -1 empty
  std::vector<Entry> entries_;
  std::vector<std::int32_t> tokens_;  // [entries, set_size, following]
};

}  // namespace weft
