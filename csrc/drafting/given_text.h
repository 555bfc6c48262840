// A text that a request expects its answer to be, and how far the answer has come in it. Python-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace weft {

// The answer may leave the text. It is back in it when its last kRejoin tokens, all of them said since it left, stand
// in the text no more than kReach tokens after the place where it left; the nearest such place counts.
class GivenText {
 public:
  static constexpr int kRejoin = 4, kReach = 1024;

  explicit GivenText(std::vector<std::int32_t> text) : text_(std::move(text)) {}

  // The next token of the answer.
  void append(std::int32_t token);
  // What the text goes on with, up to `capacity` tokens to `out`; returns how many: 0 while the answer is outside of
  // it, and at its end.
  int next(std::int32_t *out, int capacity) const;

 private:
  const std::vector<std::int32_t> text_;
  std::size_t place_ = 0;  // of what the text goes on with, or where the answer left it
  bool is_inside_ = true;
  int num_outside_ = 0;              // tokens said since it left, kRejoin at most
  std::int32_t outside_[kRejoin]{};  // ... the last of them
};

}  // namespace weft
