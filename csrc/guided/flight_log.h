// A ring buffer of fixed size for records of a guided state's last operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace weft {

// A record is a sequence of 64-bit words that begins with its length. A new record overwrites as many of the oldest
// records as its length needs. One thread at a time writes, without allocations; any thread may read.
class FlightLog {
 public:
  // Holds `capacity` words; one record has at most `longest` words.
  FlightLog(std::size_t capacity, std::size_t longest) : words_(capacity) { record_.reserve(longest); }

  void begin() { record_.assign(1, 0); }
  void put(std::int64_t word) { record_.push_back(word); }
  // The index of the next word. `set` fills in a word put earlier, such as a count of the words after it.
  std::size_t place() const { return record_.size(); }
  void set(std::size_t place, std::int64_t word) { record_[place] = word; }
  void end();

  // Returns the records as one sequence of words, oldest first.
  std::vector<std::int64_t> records() const;

 private:
  std::vector<std::int64_t> record_;  // the record being written
  mutable std::mutex mutex_;
  std::vector<std::int64_t> words_;
  std::size_t first_ = 0, used_ = 0;  // the place of the oldest record, and the number of words in use
};

}  // namespace weft
