// The last operations of a guided state, in memory of a fixed size: a ring of records, the oldest dropped for a new
// one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace weft {

// Records are 64-bit words, the first of each its length. One thread at a time writes, and allocates nothing; any
// thread may read.
class FlightLog {
 public:
  // Room for `capacity` words, of which a record has at most `longest`.
  FlightLog(std::size_t capacity, std::size_t longest) : words_(capacity) { record_.reserve(longest); }

  void begin() { record_.assign(1, 0); }
  void put(std::int64_t word) { record_.push_back(word); }
  // Place of the next word in the record, and a word that is set once what it counts is known.
  std::size_t place() const { return record_.size(); }
  void set(std::size_t place, std::int64_t word) { record_[place] = word; }
  void end();

  // The records, oldest first.
  std::vector<std::int64_t> records() const;

 private:
  std::vector<std::int64_t> record_;  // the one being written
  mutable std::mutex mutex_;
  std::vector<std::int64_t> words_;
  std::size_t first_ = 0, used_ = 0;  // the oldest record, and how many words there are
};

}  // namespace weft
